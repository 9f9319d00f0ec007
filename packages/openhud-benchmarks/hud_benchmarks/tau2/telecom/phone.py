"""The customer's phone: radio, settings, apps, and what it can do where the customer is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hud_benchmarks.tau2.demands import demand

NetworkMode = Literal["4g_5g_preferred", "4g_only", "3g_only", "2g_only"]
_TECHNOLOGIES: dict[str, tuple[str, ...]] = {
    "4g_5g_preferred": ("5G", "4G"),
    "4g_only": ("4G",),
    "3g_only": ("3G",),
    "2g_only": ("2G",),
}
"""Network technologies of each mode, the preferred one first."""
_SIGNAL = {"2G": "poor", "3G": "fair", "4G": "good", "5G": "excellent"}
"""Signal of each technology where customers are."""
_MBPS = {"2G": 0.25, "3G": 3.0, "4G": 55.0, "5G": 275.0}
"""Download speed of each technology at full signal."""
_SIGNAL_FACTOR = {"poor": 0.2, "fair": 0.5, "good": 0.8, "excellent": 1.0}
_RATINGS = ((1, "Very Poor"), (5, "Poor"), (25, "Fair"), (100, "Good"))
"""Ratings of speeds below so many Mbps; above all, Excellent."""
_SLOW_VPN = 0.1
_DATA_SAVER = 0.2
_SIM = {
    "active": "The SIM card is active and working.",
    "missing": "No SIM card is detected in the phone.",
    "locked_pin": "The SIM card is locked with a PIN code.",
    "locked_puk": "The SIM card is locked with a PUK code.",
}
_PERMISSIONS = ("sms", "storage", "phone", "network")


@dataclass
class AccessPoint:
    """Access point name (APN) settings."""

    name: str = "internet"
    mmsc_url: str | None = "http://mms.carrier.com/mms/wapenc"
    reset_at_reboot: bool = False


@dataclass
class Phone:
    """State of one phone, and of the line as far as the network tells the phone."""

    airplane_mode: bool = False
    sim: str = "active"
    sim_seated: bool = True
    data: bool = True
    roaming: bool = False
    data_saver: bool = False
    mode: str = "4g_5g_preferred"
    access_point: AccessPoint = field(default_factory=AccessPoint)
    wifi: bool = False
    wifi_calling: bool = False
    mms_over_wifi: bool = False
    vpn: str | None = None
    """Performance of the connected VPN; None: there is none."""
    apps: dict[str, set[str]] = field(
        default_factory=lambda: {
            "messaging": {"sms", "storage", "phone"},
            "browser": {"network", "storage"},
        }
    )
    """Permissions of each app."""
    technology: str | None = "5G"
    """Network technology that it is connected with; None: no service."""
    signal: str | None = "good"
    abroad: bool = False
    line_active: bool = True
    line_roams: bool = False
    data_used_up: bool = False
    payment_request: dict[str, Any] | None = None
    """`bill_id`, `amount_due` and `paid`, while a bill awaits payment."""

    @property
    def sim_status(self) -> str:
        """`active`, `missing`, `locked_pin` or `locked_puk`."""
        return self.sim if self.sim_seated else "missing"

    @property
    def service(self) -> str:
        """`connected` or `no_service`."""
        return "no_service" if self.technology is None else "connected"

    @property
    def data_works(self) -> bool:
        """Say whether mobile data reaches the network."""
        roams = not self.abroad or (self.roaming and self.line_roams)
        return self.technology is not None and self.data and roams and not self.data_used_up

    @property
    def mms_works(self) -> bool:
        """Say whether picture messages can be sent."""
        over_wifi = (
            self.wifi_calling and self.mms_over_wifi
        )  # The carrier does not take them there.
        return (
            self.data_works
            and self.technology != "2G"
            and not over_wifi
            and self.access_point.mmsc_url is not None
            and {"storage", "sms"} <= self.apps["messaging"]
        )

    def speed(self) -> tuple[float, str]:
        """Return the download speed in Mbps and its rating; 0 and `No Connection` where data does not work."""
        if not self.data_works or self.technology is None or self.signal is None:
            return 0.0, "No Connection"
        factor = (_SLOW_VPN if self.vpn == "poor" else 1.0) * (
            _DATA_SAVER if self.data_saver else 1.0
        )
        mbps = round(_MBPS[self.technology] * _SIGNAL_FACTOR[self.signal] * factor, 2)
        return mbps, next((rating for below, rating in _RATINGS if mbps < below), "Excellent")

    def search_network(self) -> None:
        """Connect anew, to what SIM card, settings and line allow."""
        self.technology = self.signal = None
        broken = self.access_point.name == "broken"
        if self.sim_status == "active" and self.line_active and not (self.airplane_mode or broken):
            self.technology = _TECHNOLOGIES[self.mode][0]
            self.signal = _SIGNAL[self.technology]

    def status_bar(self) -> str:
        """Return what the status bar shows."""
        if self.airplane_mode:
            shown = ["Airplane Mode"]
        else:
            connected = self.technology is not None
            shown = [f"Signal: {self.signal or 'none'}"]
            shown += [self.technology] if self.technology else []
            shown.append("Data Enabled" if self.data and connected else "Data Disabled")
            shown += ["Data Saver"] if self.data and connected and self.data_saver else []
        shown += ["VPN Connected"] if self.vpn else []
        return f"Status Bar: {' | '.join([*shown, 'Battery 80%'])}"


class PhoneTools:
    """Actions on the phone, by the names of the package's tools."""

    def __init__(self, phone: Phone) -> None:
        self.phone = phone

    def check_status_bar(self) -> str:
        """Show the icons of the status bar: signal, network type, mobile data, data saver, VPN, battery."""
        return self.phone.status_bar()

    def check_network_status(self) -> str:
        """Show airplane mode, SIM card, cellular connection, mobile data, roaming and Wi-Fi."""
        phone = self.phone
        return "\n".join(
            [
                f"Airplane Mode: {_on(phone.airplane_mode)}",
                f"SIM Card Status: {phone.sim_status}",
                f"Cellular Connection: {phone.service}",
                f"Cellular Signal: {phone.signal or 'none'}",
                f"Cellular Network Type: {phone.technology or 'none'}",
                f"Mobile Data Enabled: {_yes(phone.data)}",
                f"Data Roaming Enabled: {_yes(phone.roaming)}",
                f"Wi-Fi Radio: {_on(phone.wifi)}",
                "Wi-Fi Connected: No",
            ]
        )

    def check_network_mode_preference(self) -> str:
        """Show the preferred type of cellular network."""
        return f"Network Mode Preference: {self.phone.mode}"

    def set_network_mode_preference(self, mode: NetworkMode) -> str:
        """Change the preferred type of cellular network."""
        self.phone.mode = mode
        return self._searched(f"Preferred Network Mode set to: {mode}")

    def run_speed_test(self) -> str:
        """Measure the download speed of mobile data."""
        mbps, rating = self.phone.speed()
        if not mbps:
            return f"Speed test failed: {rating}."
        return f"Speed Test Result: {mbps:.2f} Mbps ({rating})."

    def toggle_airplane_mode(self) -> str:
        """Turn Airplane Mode on or off. On, it ends all wireless connections, a VPN among them."""
        self.phone.airplane_mode = not self.phone.airplane_mode
        if self.phone.airplane_mode:
            self.phone.vpn = None
        return self._searched(f"Airplane Mode is now {_on(self.phone.airplane_mode)}.")

    def check_sim_status(self) -> str:
        """Show whether the SIM card is active, missing, or locked with a PIN or PUK code."""
        return _SIM[self.phone.sim_status]

    def reseat_sim_card(self) -> str:
        """Remove the SIM card and insert it again."""
        self.phone.sim_seated = True
        return self._searched("SIM card re-seated successfully.")

    def toggle_data(self) -> str:
        """Turn mobile data on or off."""
        self.phone.data = not self.phone.data
        return self._searched(f"Mobile Data is now {_on(self.phone.data)}.")

    def toggle_roaming(self) -> str:
        """Turn data roaming on or off: the use of data outside the carrier's coverage."""
        self.phone.roaming = not self.phone.roaming
        return self._searched(f"Data Roaming is now {_on(self.phone.roaming)}.")

    def check_data_restriction_status(self) -> str:
        """Show whether Data Saver mode is on."""
        return f"Data Saver mode is {_on(self.phone.data_saver)}."

    def toggle_data_saver_mode(self) -> str:
        """Turn Data Saver mode on or off. On, it makes mobile data slower."""
        self.phone.data_saver = not self.phone.data_saver
        return self._with_bar(f"Data Saver Mode is now {_on(self.phone.data_saver)}.")

    def check_apn_settings(self) -> str:
        """Show the access point name, and the URL of the service for picture messages (MMSC)."""
        point = self.phone.access_point
        return f"Current APN Name: {point.name}\nMMSC URL (for picture messages): {point.mmsc_url or 'Not Set'}"

    def reset_apn_settings(self) -> str:
        """Set the access point back to its defaults, at the next reboot."""
        self.phone.access_point.reset_at_reboot = True
        return self._searched("APN settings will reset at reboot.")

    def check_wifi_status(self) -> str:
        """Show whether Wi-Fi is on, and connected."""
        if not self.phone.wifi:
            return "Wi-Fi is turned OFF."
        return "Wi-Fi is ON but not connected to any network."

    def toggle_wifi(self) -> str:
        """Turn Wi-Fi on or off."""
        if self.phone.airplane_mode:
            return self._with_bar("Cannot change Wi-Fi settings while Airplane Mode is ON.")
        self.phone.wifi = not self.phone.wifi
        return self._with_bar(f"Wi-Fi is now {_on(self.phone.wifi)}.")

    def check_wifi_calling_status(self) -> str:
        """Show whether Wi-Fi Calling is on: calls over Wi-Fi in place of the cellular network."""
        return f"Wi-Fi Calling is currently turned {_on(self.phone.wifi_calling)}."

    def toggle_wifi_calling(self) -> str:
        """Turn Wi-Fi Calling on or off."""
        self.phone.wifi_calling = not self.phone.wifi_calling
        return self._with_bar(f"Wi-Fi Calling is now {_on(self.phone.wifi_calling)}.")

    def check_vpn_status(self) -> str:
        """Show whether a VPN is connected, and how well it performs."""
        if self.phone.vpn is None:
            return "VPN is turned OFF."
        return f"VPN is ON and connected. Server performance: {self.phone.vpn}."

    def connect_vpn(self) -> str:
        """Connect to the VPN."""
        if self.phone.vpn is not None:
            return "VPN already connected."
        self.phone.vpn = "excellent"
        return self._with_bar("VPN connected successfully.")

    def disconnect_vpn(self) -> str:
        """Disconnect the VPN."""
        if self.phone.vpn is None:
            return self._with_bar("No active VPN connection to disconnect.")
        self.phone.vpn = None
        return self._with_bar("VPN disconnected successfully.")

    def check_installed_apps(self) -> str:
        """List the installed apps."""
        return f"The following apps are installed on the phone: {', '.join(self.phone.apps)}"

    def check_app_permissions(self, app_name: str) -> str:
        """Show the permissions of an app."""
        granted = [name for name in _PERMISSIONS if name in self._app(app_name)]
        return f"App {app_name!r} has permission for: {', '.join(granted) or 'nothing'}."

    def grant_app_permission(self, app_name: str, permission: str) -> str:
        """Grant an app a permission: sms, storage, phone or network."""
        wanted = permission.lower()
        permissions = ", ".join(_PERMISSIONS)
        demand(
            wanted in _PERMISSIONS, f"There is no permission {wanted!r}; there are {permissions}."
        )
        self._app(app_name).add(wanted)
        return self._with_bar(f"Permission {wanted!r} granted to app {app_name!r}.")

    def can_send_mms(self) -> str:
        """Show whether the messaging app can send picture messages (MMS)."""
        return f"The messaging app {'can' if self.phone.mms_works else 'cannot'} send MMS messages."

    def reboot_device(self) -> str:
        """Restart the phone: it applies a reset of the APN settings and searches for a network."""
        reset = self.phone.access_point.reset_at_reboot
        if reset:
            self.phone.access_point = AccessPoint()
        return self._searched(
            "Resetting APN settings...\n" * reset + "Restarting network services..."
        )

    def check_payment_request(self) -> str:
        """Show the carrier's request to pay a bill, where there is one."""
        payment = self.phone.payment_request
        if payment is None:
            return "No payment request has been made."
        return f"There is a payment request for bill {payment['bill_id']} of {payment['amount_due']} USD."

    def make_payment(self) -> str:
        """Pay the bill that the carrier requests payment for."""
        payment = self.phone.payment_request
        if payment is None:
            return "There is no payment request."
        payment["paid"] = True
        return (
            f"Payment of {payment['amount_due']} USD has been made for bill {payment['bill_id']}."
        )

    def _app(self, name: str) -> set[str]:
        demand(name in self.phone.apps, f"App {name!r} is not installed on this phone.")
        return self.phone.apps[name]

    def _searched(self, text: str) -> str:
        self.phone.search_network()
        return self._with_bar(text)

    def _with_bar(self, text: str) -> str:
        return f"{text}\n{self.phone.status_bar()}"


def _on(value: bool) -> str:
    return "ON" if value else "OFF"


def _yes(value: bool) -> str:
    return "Yes" if value else "No"
