"""Records to be cleaned one by one: contacts, bank statements, addresses, quantities, answers of a survey."""

from __future__ import annotations

import datetime as dt
from random import Random

from hud_benchmarks.sheetbench.grading.exercise import Exercise, Value
from hud_benchmarks.sheetbench.tables import answer_sheet, empty_workbook, lay, want_records
from hud_benchmarks.sheetbench.words import (
    CITIES,
    COMPANIES,
    FIRST_NAMES,
    LAST_NAMES,
    MONTHS,
    STREETS,
)


def contacts(random: Random) -> Exercise:
    """Names, addresses and phone numbers in several spellings."""
    exercise = Exercise(empty_workbook())
    rows: list[list[Value]] = []
    wanted: list[list[Value]] = []
    for number in random.sample(range(1, 900), random.randint(20, 28)):
        first, last = random.choice(FIRST_NAMES), random.choice(LAST_NAMES)
        spelled = random.choice(
            [f"{last}, {first}", f"{first} {last}", f"  {first.upper()} {last.upper()}", f"{last.lower()},{first.lower()} "]
        )  # fmt: skip
        mail = f"{first}.{last}@{random.choice(['example.com', 'example.org'])}".lower()
        written = random.choice([mail, mail.upper(), f" {mail} ", f"mailto:{mail}", mail.title()])
        digits = f"{random.randint(200, 989)}{random.randint(1000000, 9999999)}"
        area, middle, end = digits[:3], digits[3:6], digits[6:]
        phone = random.choice(
            [f"({area}) {middle}-{end}", f"{area}.{middle}.{end}", f"+1 {area} {middle} {end}", digits, f"1-{area}-{middle}-{end}"]
        )  # fmt: skip
        rows.append([f"C-{number:05d}", spelled, written, phone])
        wanted.append([number, first, last, mail, f"{area}-{middle}-{end}"])
    lay(exercise.workbook, random, "Contacts", ["Customer", "Name", "E-mail", "Phone"], rows)
    answer_sheet(exercise.workbook, ["Number", "First name", "Last name", "E-mail", "Phone"])
    want_records(exercise, sorted(wanted, key=lambda row: int(str(row[0]))))
    exercise.request = (
        "Clean the contacts into the sheet ANSWER, one row each, sorted by number: the customer's number as a number (C-00042 "
        "is 42); first and last name, each with a capital letter and small ones after it (a comma stands after a last name that "
        "comes first); the e-mail address in small letters and without `mailto:`; the phone number as text in the form "
        "212-555-0100, without the country code 1."
    )
    return exercise


def bank(random: Random) -> Exercise:
    """A bank's export with dates and amounts written in several ways."""
    exercise = Exercise(empty_workbook())
    rows: list[list[Value]] = []
    wanted: list[list[Value]] = []
    day = dt.date(random.randint(2021, 2025), random.randint(1, 9), random.randint(1, 28))
    for _ in range(random.randint(24, 34)):
        day += dt.timedelta(days=random.randint(0, 4))
        cents = random.choice([-1, 1, -1]) * random.randint(500, 900_000)
        currency = random.choice(["EUR", "USD", "GBP"])
        payee = random.choice(COMPANIES)
        rows.append([_date_text(random, day), _spaced(random, payee), _amount_text(random, cents, currency)])  # fmt: skip
        wanted.append([day, payee, cents / 100, currency])
    lay(exercise.workbook, random, "Statement", ["Booked", "Payee", "Amount"], rows)
    answer_sheet(exercise.workbook, ["Date", "Payee", "Amount", "Currency"])
    want_records(exercise, wanted, parts=5)
    exercise.request = (
        "Clean the bank statement into the sheet ANSWER, in the same order: date, payee, amount and currency. Dates with dots are "
        "day.month.year, dates with slashes are month/day/year. In payees, spaces at the ends and double spaces go. Amounts: "
        "parentheses, or a minus before or after the digits, mean less than zero; where the last mark is a comma, it separates "
        "the cents and dots separate thousands, else it is the other way round; the currency is the three letters, or the sign "
        "(€ EUR, $ USD, £ GBP)."
    )
    return exercise


def _date_text(random: Random, day: dt.date) -> Value:
    written: list[Value] = [
        day,
        f"{day.day:02d}.{day.month:02d}.{day.year}",
        f"{day.month}/{day.day}/{day.year}",
        f"{day.day} {MONTHS[day.month - 1]} {day.year}",
        f"{MONTHS[day.month - 1]} {day.day}, {day.year}",
    ]
    return random.choice(written)


def _spaced(random: Random, text: str) -> str:
    return random.choice([text, f" {text}", f"{text}  ", text.replace(" ", "  ", 1)])


def _amount_text(random: Random, cents: int, currency: str) -> str:
    english = f"{abs(cents) / 100:,.2f}"
    digits = random.choice([english, english.replace(",", "~").replace(".", ",").replace("~", ".")])
    if cents < 0:
        digits = random.choice([f"({digits})", f"-{digits}", f"{digits}-"])
    sign = {"EUR": "€", "USD": "$", "GBP": "£"}[currency]
    return random.choice([f"{digits} {currency}", f"{currency} {digits}", f"{digits} {sign}"])


def addresses(random: Random) -> Exercise:
    """Addresses in one cell each, to be taken apart."""
    exercise = Exercise(empty_workbook())
    rows: list[list[Value]] = []
    wanted: list[list[Value]] = []
    for number in range(random.randint(18, 26)):
        street = f"{random.choice(STREETS)} {random.choice(['Street', 'Road', 'Lane', 'Square'])}"
        house, code = random.randint(1, 180), f"{random.randint(800, 99_000):05d}"
        city = random.choice(CITIES)
        text = random.choice(
            [f"{house} {street}, {code} {city}", f"{street} {house}; {city} {code}", f"{house}, {street} / {city} ({code})"]
        )  # fmt: skip
        rows.append([f"S{100 + number}", text])
        wanted.append([f"S{100 + number}", street, house, code, city])
    lay(exercise.workbook, random, "Sites", ["Site", "Address"], rows)
    answer_sheet(exercise.workbook, ["Site", "Street", "House", "Postcode", "City"])
    want_records(exercise, wanted)
    exercise.request = (
        "Take the addresses of the sites apart into the sheet ANSWER, in the same order: site, street without the house number, "
        "house number as a number, postcode as text with its five digits, city."
    )
    return exercise


def quantities(random: Random) -> Exercise:
    """Weights in several units."""
    exercise = Exercise(empty_workbook())
    factors = {"kg": 1.0, "g": 0.001, "t": 1000.0, "lb": 0.45359237, "oz": 0.028349523125}
    rows: list[list[Value]] = []
    wanted: list[list[Value]] = []
    for lot in random.sample(range(1000, 9999), random.randint(22, 30)):
        unit = random.choice(list(factors))
        amount = random.choice([random.randint(1, 900), random.randint(10, 9000) / 10])
        text = f"{amount:,}"
        spelled = random.choice([f"{text} {unit}", f"{text}{unit}", f" {text} {unit.upper()}", f"ca. {text} {unit}."])  # fmt: skip
        rows.append([f"L{lot}", spelled])
        wanted.append([f"L{lot}", round(amount * factors[unit], 3), unit])
    lay(exercise.workbook, random, "Lots", ["Lot", "Weight"], rows)
    answer_sheet(exercise.workbook, ["Lot", "Kilograms", "Unit"])
    want_records(exercise, wanted, tolerance=0.00051)
    exercise.request = (
        "Write the lots with their weights in kilograms, rounded to three decimals, to the sheet ANSWER, in the same order, and in "
        "the last column the unit that the weight was given in, in small letters (kg, g, t, lb or oz). A tonne (t) has 1,000 kg, "
        "a pound (lb) 0.45359237 kg, an ounce (oz) 0.028349523125 kg. Commas separate thousands."
    )
    return exercise


def survey(random: Random) -> Exercise:
    """Answers of a survey with several choices in a cell."""
    exercise = Exercise(empty_workbook())
    choices = random.sample(["Phone", "E-mail", "Chat", "Post", "Visit", "Portal"], 5)
    rows: list[list[Value]] = []
    wanted: list[list[Value]] = []
    for person in random.sample(range(100, 999), random.randint(20, 28)):
        taken = random.sample(choices, random.randint(0, 4))
        spelled = [
            random.choice([choice, choice.lower(), choice.upper(), f" {choice}"])
            for choice in taken
        ]
        rows.append([person, random.choice(["; ", ", ", " / "]).join(spelled) or None])
        wanted.append([person, *(int(choice in taken) for choice in choices), len(taken)])
    lay(exercise.workbook, random, "Survey", ["Person", "Contacted us by"], rows)
    answer_sheet(exercise.workbook, ["Person", *choices, "Count"])
    want_records(exercise, sorted(wanted, key=lambda row: int(str(row[0]))))
    exercise.request = (
        "Write one row for each person of the survey to the sheet ANSWER, sorted by person: 1 below each way of contact that was "
        "chosen and 0 below the others, and in the last column how many were chosen."
    )
    return exercise
