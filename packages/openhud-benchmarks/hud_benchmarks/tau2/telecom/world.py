"""`Telecom`: a carrier and a customer's phone, broken as a task says, and checked as it says."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from hud_benchmarks.tau2.data import telecom_records
from hud_benchmarks.tau2.telecom.carrier import TODAY, Carrier, CarrierTools, add_item
from hud_benchmarks.tau2.telecom.phone import Phone, PhoneTools

EPSILON = 1e-6


class Telecom:
    """World of one task."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self.carrier = Carrier(telecom_records())
        self.phone = Phone()
        self.number: str | None = None
        """Phone number of the customer's line."""
        for step in task["initial_state"]["initialization_actions"]:
            getattr(self, f"_{step['func_name']}")(**step["arguments"])
            self.settle()

    @property
    def desks(self) -> tuple[CarrierTools, PhoneTools]:
        """Owners of the tools; `settle` follows every call."""
        return CarrierTools(self.carrier), PhoneTools(self.phone)

    def settle(self) -> None:
        """Have the network tell the phone how its line stands, and the carrier what was paid."""
        if self.number is None:
            return
        phone, line = self.phone, self.carrier.line_with(self.number)
        phone.line_active = line["status"] == "Active"
        phone.line_roams = line.get("roaming_enabled", False)
        limit = self.carrier.find("plan", line["plan_id"])["data_limit_gb"]
        phone.data_used_up = line.get("data_used_gb", 0.0) >= limit + line.get(
            "data_refueling_gb", 0.0
        )
        if phone.payment_request is not None and phone.payment_request["paid"]:
            self.carrier.find("bill", phone.payment_request["bill_id"])["status"] = "Paid"
            phone.payment_request = None
        if phone.payment_request is None:
            customer = self.carrier.customer_with(self.number)
            for bill in self.carrier.bills_of(customer, "Awaiting Payment")[:1]:
                due = {"bill_id": bill["bill_id"], "amount_due": bill["total_due"], "paid": False}
                phone.payment_request = due

    def problem(self, task: Mapping[str, Any]) -> str | None:
        """Return what the task wants otherwise than it is; None where all is as wanted."""
        for wanted in task["evaluation_criteria"]["env_assertions"] or []:
            holds = getattr(self, f"_{wanted['func_name']}")(**wanted["arguments"])
            if holds != wanted["assert_value"]:
                arguments = ", ".join(
                    f"{key}={value}" for key, value in wanted["arguments"].items()
                )
                return f"{wanted['func_name']}({arguments}) does not hold."
        return None

    # Steps that make the customer's problem, by the names of the package's tasks.

    def _set_user_info(self, name: str, phone_number: str) -> None:
        del name
        self.number = phone_number

    def _set_user_location(self, abroad: bool) -> None:
        self.phone.abroad = abroad

    def _turn_airplane_mode_on(self) -> None:
        self.phone.airplane_mode, self.phone.vpn = True, None
        self.phone.search_network()

    def _turn_data_off(self) -> None:
        self.phone.data = False
        self.phone.search_network()

    def _turn_roaming_on(self) -> None:
        self.phone.roaming = True
        self.phone.search_network()

    def _turn_roaming_off(self) -> None:
        self.phone.roaming = False
        self.phone.search_network()

    def _turn_data_saver_mode_on(self) -> None:
        self.phone.data_saver = True

    def _simulate_network_search(self) -> None:
        self.phone.search_network()

    def _set_network_mode_preference(self, mode: str) -> None:
        self.phone.mode = mode
        self.phone.search_network()

    def _remove_app_permission(self, app_name: str, permission: str) -> None:
        self.phone.apps[app_name].discard(permission)

    def _unseat_sim_card(self) -> None:
        self.phone.sim_seated = False
        self.phone.search_network()

    def _lock_sim_card(self, mode: str) -> None:
        self.phone.sim = f"locked_{mode}"
        self.phone.search_network()

    def _set_wifi_calling(self, enabled: bool, mms_over_wifi: bool | None = None) -> None:
        self.phone.wifi_calling = enabled
        if mms_over_wifi is not None:
            self.phone.mms_over_wifi = mms_over_wifi

    def _break_apn_settings(self) -> None:
        self.phone.access_point.name = "broken"
        self.phone.search_network()

    def _break_apn_mms_setting(self) -> None:
        self.phone.access_point.mmsc_url = None

    def _break_vpn(self) -> None:
        self.phone.vpn = "poor"

    def _set_data_usage(self, customer_id: str, line_id: str, data_used_gb: float) -> None:
        self.carrier.line_of(customer_id, line_id)["data_used_gb"] = data_used_gb

    def _enable_roaming(self, customer_id: str, line_id: str) -> None:
        self.carrier.line_of(customer_id, line_id)["roaming_enabled"] = True

    def _disable_roaming(self, customer_id: str, line_id: str) -> None:
        self.carrier.line_of(customer_id, line_id)["roaming_enabled"] = False

    def _suspend_line_for_overdue_bill(
        self, customer_id: str, line_id: str, new_bill_id: str, contract_ended: bool
    ) -> None:
        line = self.carrier.line_of(customer_id, line_id)
        customer = self.carrier.find("customer", customer_id)
        last = TODAY.replace(day=1) - timedelta(days=1)
        first = last.replace(day=1)
        bill = self.carrier.new_bill(customer, new_bill_id, first, last, status="Overdue")
        plan = self.carrier.find("plan", line["plan_id"])
        add_item(bill, plan["price_per_month"], f"Charge for line {line_id}")
        line |= {"status": "Suspended", "suspension_start_date": TODAY.isoformat()}
        if contract_ended:
            line["contract_end_date"] = last.isoformat()

    # Conditions that a task wants in the end.

    def _assert_service_status(self, expected_status: str) -> bool:
        return self.phone.service == expected_status

    def _assert_mobile_data_status(self, expected_status: bool) -> bool:
        return self.phone.data_works == expected_status

    def _assert_internet_speed(
        self, expected_speed: float, expected_desc: str | None = None
    ) -> bool:
        mbps, rating = self.phone.speed()
        return mbps >= expected_speed and expected_desc in (None, rating.lower())

    def _assert_can_send_mms(self, expected_status: bool) -> bool:
        return self.phone.mms_works == expected_status

    def _assert_data_refueling_amount(
        self, customer_id: str, line_id: str, expected_amount: float
    ) -> bool:
        refueled = self.carrier.line_of(customer_id, line_id).get("data_refueling_gb", 0.0)
        return bool(abs(refueled - expected_amount) < EPSILON)

    def _assert_no_overdue_bill(self, overdue_bill_id: str) -> bool:
        bills = self.carrier.records["bills"]
        return all(bill["status"] == "Paid" for bill in bills if bill["bill_id"] == overdue_bill_id)
