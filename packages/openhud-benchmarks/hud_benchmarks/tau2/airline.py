"""The airline: flights, customers and reservations, and what its agents can do with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Literal

from pydantic import BaseModel

from hud.errors import NotFoundError
from hud_benchmarks.tau2.arithmetic import evaluated
from hud_benchmarks.tau2.demands import demand

NOW = "2024-05-15T15:00:00"
"""Time of the package's policy."""
NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
BAG_USD, INSURANCE_USD = 50, 30
AIRPORTS = {
    "SFO": "San Francisco",
    "JFK": "New York",
    "LAX": "Los Angeles",
    "ORD": "Chicago",
    "DFW": "Dallas",
    "DEN": "Denver",
    "SEA": "Seattle",
    "ATL": "Atlanta",
    "MIA": "Miami",
    "BOS": "Boston",
    "PHX": "Phoenix",
    "IAH": "Houston",
    "LAS": "Las Vegas",
    "MCO": "Orlando",
    "EWR": "Newark",
    "CLT": "Charlotte",
    "MSP": "Minneapolis",
    "DTW": "Detroit",
    "PHL": "Philadelphia",
    "LGA": "LaGuardia",
}

Record = dict[str, Any]
Cabin = Literal["basic_economy", "economy", "business"]


class FlightOnDate(BaseModel):
    """One flight, on a date YYYY-MM-DD."""

    flight_number: str
    date: str


class Passenger(BaseModel):
    """One passenger; the date of birth is YYYY-MM-DD."""

    first_name: str
    last_name: str
    dob: str


class Payment(BaseModel):
    """An amount in USD from one of the customer's payment methods."""

    payment_id: str
    amount: float


class Airline:
    """Actions of the airline's agents over its records, by the names of the package's tools."""

    def __init__(self, records: Mapping[str, MutableMapping[str, Record]]) -> None:
        self.records = records

    def book_reservation(
        self,
        user_id: str,
        origin: str,
        destination: str,
        flight_type: Literal["round_trip", "one_way"],
        cabin: Cabin,
        flights: list[FlightOnDate],
        passengers: list[Passenger],
        payment_methods: list[Payment],
        total_baggages: int,
        nonfree_baggages: int,
        insurance: Literal["yes", "no"],
    ) -> Record:
        """Book a reservation. Payments must add up to the price of seats, insurance and bags that are not free."""
        user = self._find("users", user_id)
        number = next(
            (number for number in NEW_RESERVATIONS if number not in self.records["reservations"]),
            "",
        )
        demand(number, "Too many reservations")
        legs = [self._leg(flight, cabin, len(passengers)) for flight in flights]
        price = sum(leg["price"] for leg in legs) * len(passengers)
        price += INSURANCE_USD * len(passengers) * (insurance == "yes") + BAG_USD * nonfree_baggages
        for payment in payment_methods:
            method = self._method(user, payment.payment_id)
            enough = method.get("amount", payment.amount) >= payment.amount
            demand(enough, f"Not enough balance in payment method {payment.payment_id}")
        paid = sum(payment.amount for payment in payment_methods)
        demand(
            paid == price,
            f"Payment amount does not add up, total price is {price}, but paid {paid}",
        )
        for payment in payment_methods:
            method = user["payment_methods"][payment.payment_id]
            if method["source"] == "gift_card":
                method["amount"] -= payment.amount
            elif method["source"] == "certificate":
                del user["payment_methods"][payment.payment_id]
        for leg in legs:
            self._day(leg["flight_number"], leg["date"])["available_seats"][cabin] -= len(
                passengers
            )
        reservation = {
            "reservation_id": number,
            "user_id": user_id,
            "origin": origin,
            "destination": destination,
            "flight_type": flight_type,
            "cabin": cabin,
            "flights": legs,
            "passengers": [passenger.model_dump() for passenger in passengers],
            "payment_history": [payment.model_dump() for payment in payment_methods],
            "created_at": NOW,
            "total_baggages": total_baggages,
            "nonfree_baggages": nonfree_baggages,
            "insurance": insurance,
        }
        self.records["reservations"][number] = reservation
        user["reservations"].append(number)
        return reservation

    def cancel_reservation(self, reservation_id: str) -> Record:
        """Cancel a whole reservation, and refund its payments."""
        reservation = self._find("reservations", reservation_id)
        reservation["payment_history"] += [
            {"payment_id": payment["payment_id"], "amount": -payment["amount"]}
            for payment in reservation["payment_history"]
        ]
        reservation["status"] = "cancelled"
        return reservation

    def get_reservation_details(self, reservation_id: str) -> Record:
        """Return a reservation."""
        return self._find("reservations", reservation_id)

    def get_user_details(self, user_id: str) -> Record:
        """Return a customer, with the ids of the reservations."""
        return self._find("users", user_id)

    def get_flight_status(self, flight_number: str, date: str) -> str:
        """Return the status of a flight on a date YYYY-MM-DD."""
        return str(self._day(flight_number, date)["status"])

    def list_all_airports(self) -> dict[str, str]:
        """Return all airports: city by IATA code."""
        return AIRPORTS

    def search_direct_flight(self, origin: str, destination: str, date: str) -> list[Record]:
        """Find direct flights between two airports (IATA codes) on a date YYYY-MM-DD."""
        return list(self._direct(date, origin, destination))

    def search_onestop_flight(self, origin: str, destination: str, date: str) -> list[list[Record]]:
        """Find pairs of flights with one stop between two airports (IATA codes) on a date YYYY-MM-DD."""
        connections = []
        for first in self._direct(date, origin):
            arrival = first["scheduled_arrival_time_est"]
            then = f"{date[:-2]}{int(date[-2:]) + 1:02}" if "+1" in arrival else date
            connections += [
                [{**first, "date": date}, {**second, "date": then}]
                for second in self._direct(then, first["destination"], destination)
                if second["scheduled_departure_time_est"] >= arrival
            ]
        return connections

    def send_certificate(self, user_id: str, amount: int) -> str:
        """Give a customer a certificate over an amount in USD."""
        methods = self._find("users", user_id)["payment_methods"]
        number = next(
            (certificate for certificate in NEW_CERTIFICATES if certificate not in methods), ""
        )
        demand(number, "Too many certificates")
        methods[number] = {"source": "certificate", "id": number, "amount": amount}
        return f"Certificate {number} added to user {user_id} with amount {amount}."

    def update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> Record:
        """Set the number of bags of a reservation; further ones that are not free are paid."""
        reservation = self._find("reservations", reservation_id)
        more = max(0, nonfree_baggages - reservation["nonfree_baggages"])
        self._pay(reservation, payment_id, BAG_USD * more)
        return _updated(
            reservation, total_baggages=total_baggages, nonfree_baggages=nonfree_baggages
        )

    def update_reservation_flights(
        self, reservation_id: str, cabin: Cabin, flights: list[FlightOnDate], payment_id: str
    ) -> Record:
        """Set cabin and all flights of a reservation, also those that stay; the difference is paid or refunded."""
        reservation = self._find("reservations", reservation_id)
        people = len(reservation["passengers"])
        unchanged = {
            (leg["flight_number"], leg["date"]): leg
            for leg in reservation["flights"]
            if cabin == reservation["cabin"]
        }
        legs = [
            unchanged.get((flight.flight_number, flight.date)) or self._leg(flight, cabin, people)
            for flight in flights
        ]
        before = sum(leg["price"] for leg in reservation["flights"])
        self._pay(reservation, payment_id, (sum(leg["price"] for leg in legs) - before) * people)
        return _updated(reservation, flights=legs, cabin=cabin)

    def update_reservation_passengers(
        self, reservation_id: str, passengers: list[Passenger]
    ) -> Record:
        """Replace the passengers of a reservation by as many others."""
        reservation = self._find("reservations", reservation_id)
        same = len(passengers) == len(reservation["passengers"])
        demand(same, "Number of passengers does not match")
        return _updated(
            reservation, passengers=[passenger.model_dump() for passenger in passengers]
        )

    def calculate(self, expression: str) -> float:
        """Compute an arithmetic expression of numbers, + - * / and parentheses."""
        return evaluated(expression)

    def transfer_to_human_agents(self, summary: str) -> str:
        """Transfer the customer to a human agent, where the policy or the tools do not allow to solve the issue."""
        del summary
        return "Transfer successful"

    def _find(self, kind: str, identifier: str) -> Record:
        if identifier not in self.records[kind]:
            raise NotFoundError(f"{kind[:-1].capitalize()} {identifier} not found")
        return self.records[kind][identifier]

    def _day(self, flight_number: str, date: str) -> Record:
        dates = self._find("flights", flight_number)["dates"]
        if date not in dates:
            raise NotFoundError(f"Flight {flight_number} not found on date {date}")
        day: Record = dates[date]
        return day

    def _leg(self, wanted: FlightOnDate, cabin: Cabin, people: int) -> Record:
        """Return a flight as a part of a reservation; raises `UsageError` where there are too few seats."""
        day = self._day(wanted.flight_number, wanted.date)
        number = wanted.flight_number
        available = day["status"] == "available"
        demand(available, f"Flight {number} not available on date {wanted.date}")
        demand(day["available_seats"][cabin] >= people, f"Not enough seats on flight {number}")
        flight = self._find("flights", number)
        places = {name: flight[name] for name in ("origin", "destination")}
        return {**places, **wanted.model_dump(), "price": day["prices"][cabin]}

    def _direct(self, date: str, origin: str, destination: str | None = None) -> Iterator[Record]:
        for flight in self.records["flights"].values():
            day = flight["dates"].get(date, {})
            there = destination in (None, flight["destination"])
            if flight["origin"] == origin and there and day.get("status") == "available":
                plan = {name: value for name, value in flight.items() if name != "dates"}
                yield {**plan, **day}

    def _method(self, user: Record, payment_id: str) -> Record:
        if payment_id not in user["payment_methods"]:
            raise NotFoundError(f"Payment method {payment_id} not found")
        method: Record = user["payment_methods"][payment_id]
        return method

    def _pay(self, reservation: Record, payment_id: str, price: float) -> None:
        """Have a change of a reservation paid or, below zero, refunded."""
        method = self._method(self._find("users", reservation["user_id"]), payment_id)
        certificate = method["source"] == "certificate"
        demand(not certificate, "Certificate cannot be used to update reservation")
        if method["source"] == "gift_card":
            demand(method["amount"] >= price, "Gift card balance is not enough")
            method["amount"] -= price
        if price:
            reservation["payment_history"].append({"payment_id": payment_id, "amount": price})


def _updated(reservation: Record, **changed: Any) -> Record:
    reservation |= changed
    return reservation
