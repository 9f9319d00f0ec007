"""The shop: products, customers and orders, and what its agents can do with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Literal

from hud.errors import NotFoundError
from hud_benchmarks.tau2.arithmetic import evaluated
from hud_benchmarks.tau2.demands import demand

Record = dict[str, Any]


class Retail:
    """Actions of the shop's agents over its records, by the names of the package's tools."""

    def __init__(self, records: Mapping[str, MutableMapping[str, Record]]) -> None:
        self.records = records

    def find_user_id_by_email(self, email: str) -> str:
        """Find a customer's id by email."""
        return self._user_id(lambda user: user["email"].lower() == email.lower())

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find a customer's id by first name, last name and zip code."""
        wanted = (first_name.lower(), last_name.lower(), zip)

        def identity(user: Record) -> tuple[str, str, str]:
            name = user["name"]
            return name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]

        return self._user_id(lambda user: identity(user) == wanted)

    def get_user_details(self, user_id: str) -> Record:
        """Return a customer, with the ids of the orders."""
        return self._find("users", user_id)

    def get_order_details(self, order_id: str) -> Record:
        """Return an order; ids begin with '#', as '#W0000000'."""
        return self._find("orders", order_id)

    def get_product_details(self, product_id: str) -> Record:
        """Return a product with its variants; its id is not that of an item."""
        return self._find("products", product_id)

    def list_all_product_types(self) -> dict[str, str]:
        """Return the id of each product, by name."""
        return {
            product["name"]: product["product_id"] for product in self.records["products"].values()
        }

    def cancel_pending_order(
        self, order_id: str, reason: Literal["no longer needed", "ordered by mistake"]
    ) -> Record:
        """Cancel a pending order, and refund its payments."""
        order = self._order(order_id, "pending", "cancelled")
        refunds = []
        for payment in order["payment_history"]:
            method = self._method(order, payment["payment_method_id"])
            _take(method, -payment["amount"])
            refunds.append({**payment, "transaction_type": "refund"})
        order["payment_history"] += refunds
        return _updated(order, status="cancelled", cancel_reason=reason)

    def modify_pending_order_address(
        self,
        order_id: str,
        address1: str,
        address2: str,
        city: str,
        state: str,
        country: str,
        zip: str,
    ) -> Record:
        """Change the shipping address of a pending order."""
        order = self._unshipped(order_id)
        return _updated(order, address=_address(address1, address2, city, state, country, zip))

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Exchange items of a pending order for others of the same products, once; the difference is paid or refunded."""
        order = self._order(order_id, "pending", "modified")
        differ = all(old != new for old, new in zip(item_ids, new_item_ids, strict=False))
        demand(differ, "The new item id should be different from the old item id")
        exchanged = self._exchange(order, item_ids, new_item_ids)
        difference = _difference(exchanged)
        method = self._affordable(order, payment_method_id, difference)
        kind = "payment" if difference > 0 else "refund"
        order["payment_history"].append(_payment(kind, abs(difference), payment_method_id))
        _take(method, difference)
        for item, variant in exchanged:
            item |= {name: variant[name] for name in ("item_id", "price", "options")}
        return _updated(order, status="pending (item modified)")

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Record:
        """Change the payment method of a pending order."""
        order = self._unshipped(order_id)
        history = order["payment_history"]
        once = [payment["transaction_type"] for payment in history] == ["payment"]
        demand(once, "There should be exactly one payment for a pending order")
        amount, before = history[0]["amount"], history[0]["payment_method_id"]
        other = before != payment_method_id
        demand(other, "The new payment method should be different from the current one")
        _take(self._affordable(order, payment_method_id, amount), amount)
        _take(self._method(order, before), -amount)
        history += [
            _payment("payment", amount, payment_method_id),
            _payment("refund", amount, before),
        ]
        return order

    def modify_user_address(
        self,
        user_id: str,
        address1: str,
        address2: str,
        city: str,
        state: str,
        country: str,
        zip: str,
    ) -> Record:
        """Change the default address of a customer."""
        address = _address(address1, address2, city, state, country, zip)
        return _updated(self._find("users", user_id), address=address)

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Request the exchange of items of a delivered order for others of the same products."""
        order = self._order(order_id, "delivered", "exchanged")
        difference = _difference(self._exchange(order, item_ids, new_item_ids))
        self._affordable(order, payment_method_id, difference)
        return _updated(
            order,
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=difference,
        )

    def return_delivered_order_items(
        self, order_id: str, item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Request the return of items of a delivered order, refunded to the original payment method or a gift card."""
        order = self._order(order_id, "delivered", "returned")
        method = self._method(order, payment_method_id)
        original = order["payment_history"][0]["payment_method_id"]
        refundable = method["source"] == "gift_card" or payment_method_id == original
        demand(refundable, "Payment method should be the original payment method")
        self._items(order, item_ids)
        return _updated(
            order,
            status="return requested",
            return_items=sorted(item_ids),
            return_payment_method_id=payment_method_id,
        )

    def calculate(self, expression: str) -> float:
        """Compute an arithmetic expression of numbers, + - * / and parentheses."""
        return evaluated(expression)

    def transfer_to_human_agents(self, summary: str) -> str:
        """Transfer the customer to a human agent, where the policy or the tools do not allow to solve the issue."""
        del summary
        return "Transfer successful"

    def _user_id(self, wanted: Callable[[Record], bool]) -> str:
        for user_id, user in self.records["users"].items():
            if wanted(user):
                return user_id
        raise NotFoundError("User not found")

    def _find(self, kind: str, identifier: str) -> Record:
        if identifier not in self.records[kind]:
            raise NotFoundError(f"{kind[:-1].capitalize()} {identifier} not found")
        return self.records[kind][identifier]

    def _order(self, order_id: str, status: str, done: str) -> Record:
        order = self._find("orders", order_id)
        demand(order["status"] == status, f"Non-{status} order cannot be {done}")
        return order

    def _unshipped(self, order_id: str) -> Record:
        """Return an order that is pending, its items modified or not."""
        order = self._find("orders", order_id)
        demand("pending" in order["status"], "Non-pending order cannot be modified")
        return order

    def _method(self, order: Record, payment_method_id: str) -> Record:
        methods = self._find("users", order["user_id"])["payment_methods"]
        if payment_method_id not in methods:
            raise NotFoundError("Payment method not found")
        method: Record = methods[payment_method_id]
        return method

    def _affordable(self, order: Record, payment_method_id: str, amount: float) -> Record:
        method = self._method(order, payment_method_id)
        demand(method.get("balance", amount) >= amount, "Insufficient gift card balance")
        return method

    def _items(self, order: Record, item_ids: list[str]) -> list[Record]:
        """Return items of an order, each as often as it is named."""
        left = list(order["items"])
        missing = Counter(item_ids) - Counter(item["item_id"] for item in left)
        if missing:
            raise NotFoundError(f"Item {next(iter(missing))} not found in the order")
        chosen = []
        for item_id in item_ids:
            place = next(at for at, item in enumerate(left) if item["item_id"] == item_id)
            chosen.append(left.pop(place))
        return chosen

    def _exchange(
        self, order: Record, item_ids: list[str], new_item_ids: list[str]
    ) -> list[tuple[Record, Record]]:
        """Return items of an order, each with the variant of the same product that is to replace it."""
        same = len(item_ids) == len(new_item_ids)
        demand(same, "The number of items to be exchanged should match")
        pairs = []
        for item, new in zip(self._items(order, item_ids), new_item_ids, strict=True):
            variant = self._find("products", item["product_id"])["variants"].get(new, {})
            demand(variant.get("available"), f"New item {new} not found or available")
            pairs.append((item, variant))
        return pairs


def _difference(exchanged: list[tuple[Record, Record]]) -> float:
    """Return the difference of prices in USD, to the cent: it must not depend on the order of the items."""
    difference: float = round(sum(new["price"] - old["price"] for old, new in exchanged), 2)
    return difference


def _payment(kind: str, amount: float, payment_method_id: str) -> Record:
    return {
        "transaction_type": kind,
        "amount": amount,
        "payment_method_id": payment_method_id,
    }


def _take(method: Record, amount: float) -> None:
    """Take an amount from a payment method, where it is a gift card; below zero, give it back."""
    if method["source"] == "gift_card":
        method["balance"] = round(method["balance"] - amount, 2)


def _address(
    address1: str, address2: str, city: str, state: str, country: str, zip_code: str
) -> Record:
    return {
        "address1": address1,
        "address2": address2,
        "city": city,
        "state": state,
        "country": country,
        "zip": zip_code,
    }


def _updated(record: Record, **changed: Any) -> Record:
    record |= changed
    return record
