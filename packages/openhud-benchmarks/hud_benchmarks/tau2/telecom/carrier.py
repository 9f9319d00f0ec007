"""The carrier: customers, lines, plans and bills, and what its agents can do with them."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from hud.errors import NotFoundError
from hud_benchmarks.tau2.demands import demand

TODAY = date(2025, 2, 25)
"""Date of the package's policies."""
_KINDS = {"L": "line", "D": "device", "B": "bill", "C": "customer", "P": "plan"}
"""Kind of a record, by the first letter of its id."""

Record = dict[str, Any]


class Carrier:
    """The carrier's records, as the package's `db.toml` holds them; dates are text, YYYY-MM-DD."""

    def __init__(self, records: dict[str, list[Record]]) -> None:
        self.records = records

    def find(self, kind: str, identifier: str) -> Record:
        """Return a record by its kind and id; raises `NotFoundError`."""
        for record in self.records[f"{kind}s"]:
            if record[f"{kind}_id"] == identifier:
                return record
        raise NotFoundError(f"{kind.capitalize()} with ID {identifier} not found")

    def line_of(self, customer_id: str, line_id: str) -> Record:
        """Return a line of a customer; raises `NotFoundError`."""
        if line_id not in self.find("customer", customer_id)["line_ids"]:
            raise NotFoundError(f"Line {line_id} not found for customer {customer_id}")
        return self.find("line", line_id)

    def line_with(self, phone_number: str) -> Record:
        """Return the line with a phone number; raises `NotFoundError`."""
        for line in self.records["lines"]:
            if line["phone_number"] == phone_number:
                return line
        raise NotFoundError(f"Line with phone number {phone_number} not found")

    def customer_with(self, phone_number: str) -> Record:
        """Return the customer with this number, as a contact or of a line; raises `NotFoundError`."""
        for customer in self.records["customers"]:
            lines = (self.find("line", line_id)["phone_number"] for line_id in customer["line_ids"])
            if phone_number in (customer["phone_number"], *lines):
                return customer
        raise NotFoundError(f"Customer with phone number {phone_number} not found")

    def bills_of(self, customer: Record, status: str) -> list[Record]:
        """Return a customer's bills with a status."""
        bills = (self.find("bill", bill_id) for bill_id in customer["bill_ids"])
        return [bill for bill in bills if bill["status"] == status]

    def new_bill(
        self, customer: Record, bill_id: str, first: date, last: date, **more: Any
    ) -> Record:
        """Add a bill without items to a customer's, for a period, due two weeks after its first day."""
        bill = {
            "bill_id": bill_id,
            "customer_id": customer["customer_id"],
            "period_start": first.isoformat(),
            "period_end": last.isoformat(),
            "issue_date": first.isoformat(),
            "total_due": 0.0,
            "due_date": (first + timedelta(days=14)).isoformat(),
            "line_items": [],
            **more,
        }
        self.records["bills"].append(bill)
        customer["bill_ids"].append(bill_id)
        return bill


def add_item(bill: Record, amount: float, description: str) -> None:
    """Add a charge to a bill."""
    item = {
        "description": description,
        "amount": amount,
        "date": TODAY.isoformat(),
        "item_type": "Credit" if amount < 0 else "Charge",
    }
    bill["line_items"].append(item)
    bill["total_due"] += amount


class CarrierTools:
    """Actions of the carrier's agents, by the names of the package's tools."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier

    def get_customer_by_phone(self, phone_number: str) -> Record:
        """Find a customer by the phone number of a contact or a line."""
        return self.carrier.customer_with(phone_number)

    def get_customer_by_id(self, customer_id: str) -> Record:
        """Return a customer."""
        return self.carrier.find("customer", customer_id)

    def get_customer_by_name(self, full_name: str, dob: str) -> list[Record]:
        """Find customers by full name and date of birth (YYYY-MM-DD)."""
        return [
            customer
            for customer in self.carrier.records["customers"]
            if customer["full_name"].lower() == full_name.lower()
            and customer["date_of_birth"] == dob
        ]

    def get_details_by_id(self, id: str) -> Record:
        """Return a customer, line, device, bill or plan by its ID."""
        kind = _KINDS.get(id[:1], "")
        demand(kind, f"Unknown ID format or type: {id}")
        return self.carrier.find(kind, id)

    def suspend_line(self, customer_id: str, line_id: str, reason: str) -> Record:
        """Suspend an active line, for at most six months and a holding fee of $5 a month."""
        del reason
        line = self.carrier.line_of(customer_id, line_id)
        demand(line["status"] == "Active", "Line must be active to suspend")
        line |= {"status": "Suspended", "suspension_start_date": TODAY.isoformat()}
        return {"message": "Line suspended successfully.", "line": line}

    def resume_line(self, customer_id: str, line_id: str) -> Record:
        """Resume a line that is suspended, or awaits activation."""
        line = self.carrier.line_of(customer_id, line_id)
        idle = line["status"] in ("Suspended", "Pending Activation")
        demand(idle, "Line must be suspended to resume")
        line |= {"status": "Active", "suspension_start_date": None}
        return {"message": "Line resumed successfully", "line": line}

    def get_bills_for_customer(self, customer_id: str, limit: int = 12) -> list[Record]:
        """Return a customer's bills, the newest first."""
        customer = self.carrier.find("customer", customer_id)
        bills = [self.carrier.find("bill", listed_id) for listed_id in customer["bill_ids"]]
        return sorted(bills, key=lambda bill: bill["issue_date"], reverse=True)[:limit]

    def send_payment_request(self, customer_id: str, bill_id: str) -> str:
        """Request a customer's payment of a bill, one at a time. It does not check that the bill is unpaid."""
        customer = self.carrier.find("customer", customer_id)
        waiting = self.carrier.bills_of(customer, "Awaiting Payment")
        demand(not waiting, "A bill is already awaiting payment for this customer")
        is_customers = bill_id in customer["bill_ids"]
        demand(is_customers, f"Bill {bill_id} not found for customer {customer_id}")
        self.carrier.find("bill", bill_id)["status"] = "Awaiting Payment"
        return f"Payment request sent to the customer for bill {bill_id}"

    def get_data_usage(self, customer_id: str, line_id: str) -> Record:
        """Return a line's data usage in this billing cycle, in GB: used, limit, refueled, and the cycle's end."""
        line = self.carrier.line_of(customer_id, line_id)
        return {
            "line_id": line_id,
            "data_used_gb": line.get("data_used_gb", 0.0),
            "data_limit_gb": self.carrier.find("plan", line["plan_id"])["data_limit_gb"],
            "data_refueling_gb": line.get("data_refueling_gb", 0.0),
            "cycle_end_date": (_first_of_next_month(TODAY) - timedelta(days=1)).isoformat(),
        }

    def enable_roaming(self, customer_id: str, line_id: str) -> str:
        """Enable international roaming on a line."""
        return self._set_roaming(customer_id, line_id, True)

    def disable_roaming(self, customer_id: str, line_id: str) -> str:
        """Disable international roaming on a line."""
        return self._set_roaming(customer_id, line_id, False)

    def refuel_data(self, customer_id: str, line_id: str, gb_amount: float) -> Record:
        """Add data to a line, in GB, and charge the customer by the plan's price."""
        line = self.carrier.line_of(customer_id, line_id)
        demand(gb_amount > 0, "Refuel amount must be positive")
        price = self.carrier.find("plan", line["plan_id"])["data_refueling_price_per_gb"]
        line["data_refueling_gb"] = line.get("data_refueling_gb", 0.0) + gb_amount
        customer = self.carrier.find("customer", customer_id)
        drafts = self.carrier.bills_of(customer, "Draft")
        first = _first_of_next_month(TODAY)
        bill = (
            drafts[0]
            if drafts
            else self.carrier.new_bill(
                customer,
                f"B{len(self.carrier.records['bills']) + 1:08}",
                first,
                _first_of_next_month(first) - timedelta(days=1),
                status="Draft",
            )
        )
        add_item(bill, gb_amount * price, f"Data refueling: {gb_amount} GB at ${price}/GB")
        return {
            "message": f"Successfully added {gb_amount} GB of data for line {line_id}",
            "new_data_refueling_gb": line["data_refueling_gb"],
            "charge": gb_amount * price,
        }

    def transfer_to_human_agents(self, summary: str) -> str:
        """Transfer the customer to a human agent, where the issue cannot be solved within the policy."""
        del summary
        return "Transfer successful"

    def _set_roaming(self, customer_id: str, line_id: str, wanted: bool) -> str:
        line = self.carrier.line_of(customer_id, line_id)
        word = "enabled" if wanted else "disabled"
        if line.get("roaming_enabled", False) == wanted:
            return f"Roaming was already {word}"
        line["roaming_enabled"] = wanted
        return f"Roaming {word} successfully"


def _first_of_next_month(day: date) -> date:
    return (day.replace(day=1) + timedelta(days=32)).replace(day=1)
