"""Pairs of an answer and what was expected, each with the verdict of a careful person: True where they are the same."""

from __future__ import annotations

EXACT: list[tuple[str, str, bool]] = [
    # Nothing is something else than an article.
    ("", "A", False), ("A", "", False), ("", "the", False), ("", "an", False), ("the", "", False),
    ("the", "a", False), ("a", "an", False), ("The", "the", True), ("A", "a", True), ("A", "a.", True),
    ("A", "B", False), ("A.", "B.", False), ("", "", True), (" ", "", True), ("", ".", False),
    (".", "", False), ("?", "!", False), ("!", "?", False), ("...", ".", False), ("-", "", False),
    ("-", "+", False), ("+", "", False), ("0", "", False), ("", "0", False), ('""', "", False),
    # Choices.
    ("A", "(A)", True), ("(C)", "C", True), ("(c)", "C", True), ("C.", "C", True), ("**C**", "C", True),
    ("A, C", "C", False), ("A, C", "A C", True), ("A and C", "C", False), ("A or B", "B", False),
    ("A and B", "and B", False), ("B and A", "B and", False), ("a is true", "is true", False),
    ("A B", "B", False), ("B", "A B", False), ("AB", "A B", False), ("option A", "option", False),
    ("vitamin A", "vitamin", False), ("Vitamin A deficiency", "vitamin deficiency", False),
    ("grade A student", "grade student", False), ("Plan A works", "plan works", False),
    ("The The", "the", False), ("The Who", "Who", True), ("the a", "a", False),
    # Articles before words.
    ("The 3 cats.", "3 cats", True), ("the cat", "cat", True), ("a cat", "cat", True), ("An owl", "owl", True),
    ("cat on the mat", "cat on mat", True), ("theatre", "atre", False), ("another", "other", False),
    ("an hour", "hour", True), ("The answer", "answer", True), ("a", "b", False), ("a b", "b", False),
    # Signs.
    ("-5", "5", False), ("5", "-5", False), ("+5", "-5", False), ("−5", "-5", True), ("−5", "5", False),
    ("–5", "5", False), ("-5", "- 5", False), ("-3.2", "3.2", False), ("-x", "x", False), ("+x", "-x", False),
    ("5-3", "53", False), ("5-3", "5 3", False), ("5-3", "5+3", False), ("10-12", "10 12", False),
    ("10–12", "10-12", True), ("-1,000", "1000", False), ("-1,000", "-1000", True), ("±5", "5", False),
    ("-0", "0", False), ("--5", "-5", False), ("1e-5", "1e5", False), ("x^-1", "x^1", False),
    # Points and commas.
    ("3 5", "3.5", False), ("3.5", "35", False), ("3,5", "35", False), ("3,5", "3.5", False), ("3,5", "3 5", False),
    (".5", "5", False), ("0.5", "5", False), (".5", "0.5", False), ("5.", "5", True), ("42.", "42", True),
    ("1,000", "1000", True), ("1,000,000", "1000000", True), ("1,000.5", "1000.5", True), ("1,00", "100", False),
    ("10,00", "1000", False), ("1,0000", "10000", False), ("1.000", "1000", False), ("1 000", "1000", False),
    ("1.2.3", "123", False), ("1.2.3", "1 2 3", False), ("v1.2", "v12", False), ("192.168.0.1", "192 168 0 1", False),
    ("3. 5", "3 5", False), ("3: 5", "3 5", False), ("3:5", "35", False), ("3:5", "3 5", False),
    ("10:30", "1030", False), ("[1, 2]", "[12]", False), ("1, 2", "12", False), ("1, 2", "1.2", False),
    ("(1, 2)", "(12)", False), ("100.00", "10000", False), ("May 3, 2024", "May 3 2024", True),
    # Operators, units and currencies.
    ("x<y", "x>y", False), ("x < y", "x y", False), ("x<=y", "x<y", False), ("x=y", "x!=y", False),
    ("x == y", "x = y", False), ("x+y", "x-y", False), ("x*y", "x/y", False), ("x*y", "xy", False),
    ("x y", "x*y", False), ("x-y", "x y", False), ("1/2", "12", False), ("1/2", "1 2", False), ("1/2", "1-2", False),
    ("2^10", "210", False), ("2^10", "2 10", False), ("2**10", "2*10", False), ("a&b", "a|b", False),
    ("a && b", "a || b", False), ("!x", "x", False), ("~x", "x", False), ("x%", "x", False), ("5%", "5", False),
    ("5 %", "5", False), ("$5", "5", False), ("$5", "€5", False), ("5€", "5", False), ("#5", "5", False),
    ("C", "C++", False), ("C", "C#", False), ("C++", "C#", False), ("c++.", "C++", True), ("F#", "F", False),
    (".NET", "NET", False), ("A+", "A", False), ("A-", "A+", False), ("B-", "B", False), ("AT&T", "ATT", False),
    ("AT&T", "AT T", False), ("R&D", "RD", False), ("km/h", "km h", False), ("n!", "n", False), ("5!", "5", False),
    ("x²", "x2", False), ("10²", "102", False), ("½", "12", False), ("¼", "14", False), ("H₂O", "H2O", False),
    ("f(x)", "fx", False), ("f(x)", "f x", False), ("(5)", "5", False), ("[5]", "5", False), ("{x}", "x", False),
    ("x_1", "x1", False), ("x_1", "x 1", False), ("snake_case", "snakecase", False), ("__init__", "init", False),
    ("a@b.c", "a b c", False), ("@user", "user", False), ("#tag", "tag", False), ("/etc", "etc", False),
    ("a\\b", "ab", False), ("~/x", "/x", False), ("-rf", "rf", False), ("--all", "all", False),
    ("a.b", "ab", False), ("a.b", "a b", False), ("x >> 1", "x << 1", False), ("≤5", "<5", False),
    ("5°", "5", False), ("∞", "-∞", False), ("√2", "2", False), ("=SUM(A1)", "SUM(A1)", False),
    # Digits.
    ("5", "6", False), ("05", "5", False), ("5", "5.0", False), ("five", "5", False), ("５", "5", True),
    ("3 cats", "4 cats", False), ("12", "1 2", False), ("12", "21", False), ("1", "l", False), ("0", "O", False),
    # Typography.
    ("Paris", "paris", True), ("Paris.", "Paris", True), ("Paris!", "Paris", True), ("Paris?", "Paris", True),
    (" Paris ", "Paris", True), ("Paris\n", "Paris", True), ("'Paris'", "Paris", True), ('"Paris"', "Paris", True),
    ("“Paris”", "Paris", True), ("‘Paris’", "Paris", True), ("«Paris»", "Paris", True), ("`Paris`", "Paris", True),
    ("**Paris**", "Paris", True), ("*Paris*", "Paris", True), ("**Paris.**", "Paris", True), ('"Paris."', "Paris", True),
    ("Paris,  France", "Paris, France", True), ("Paris, France", "Paris France", True), ("Paris;", "Paris", True),
    ("well-known", "well known", True), ("well‐known", "well-known", True), ("don’t", "don't", True),
    ("don't", "dont", False), ("it's", "its", False), ("Straße", "STRASSE", True), ("ﬁne", "fine", True),
    ("e\u0301te\u0301", "été", True), ("été", "ete", False), ("naïve", "naive", False), ("Ｐａｒｉｓ", "Paris", True),
    ("New\u00a0York", "New York", True), ("New York", "Newyork", False), ("soft\u00adware", "software", True),
    ("zero\u200bwidth", "zerowidth", True), ("wait…", "wait...", True), ("Yes.", "yes", True), ("Yes!!", "Yes", True),
    ("no", "yes", False), ("not Paris", "Paris", False), ("Paris", "London", False), ("Paris or London", "Paris", False),
    ("rock 'n' roll", "rock n roll", True), ("5'", "5", False), ('5"', "5", False), ("日本", "日本", True),
    ("日本", "日 本", False), ("Ελλάς", "ΕΛΛΆΣ", True), ("İ", "i", False), ("e.g. this", "e.g this", True),
]  # fmt: skip

NUMERIC: list[tuple[str, float, float, bool]] = [
    # Signs.
    ("5", 5, 0, True), ("-5", -5, 0, True), ("-5", 5, 0, False), ("\u22125", 5, 0, False), ("\u22125", -5, 0, True),
    ("- 5", 5, 0, False), ("- 5", -5, 0, True), ("\u2212 5", 5, 0, False), ("\u2212 5", -5, 0, True),
    ("\u20135", 5, 0, False), ("\u20135", -5, 0, True), ("\uff0d5", 5, 0, False), ("\ufe635", -5, 0, True),
    ("+5", 5, 0, True), ("+ 5", 5, 0, True), ("±5", 5, 0, False), ("±5", -5, 0, False),
    ("(5)", 5, 0, False), ("(5)", -5, 0, True), ("($5)", -5, 0, True), ("(1,200.50)", -1200.5, 0, True),
    ("$(5)", -5, 0, True), ("(-5)", -5, 0, True), ("(5", 5, 0, True), ("f(5)", 5, 0, True), (r"\(5\)", 5, 0, True),
    (r"$\boxed{5}$", 5, 0, True), ("cats (5)", 5, 0, True), ("Loss: (5)", -5, 0, True),
    ("-$5", -5, 0, True), ("-$5", 5, 0, False), ("$-5", -5, 0, True), ("- $5", 5, 0, False), ("-€5", -5, 0, True),
    ("It is -5.", -5, 0, True), ("It is -5.", 5, 0, False), ("x=-5", -5, 0, True), ("x=-5", 5, 0, False),
    ("the answer: - 5", 5, 0, False), ("The answer - 5", 5, 0, True), ("COVID-19", 19, 0, True),
    ("COVID-19", -19, 0, False), ("10-12", 10, 0, True), ("Result:\n- 5", 5, 0, True), ("-0", 0, 0, True),
    ("-.5", -0.5, 0, True), ("-.5", 0.5, 0, False), ("-1e3", -1000, 0, True), ("−1,000", -1000, 0, True),
    # Exact integers.
    ("12345678901", 12345678890, 0, False), ("12345678901", 12345678901, 0, True),
    ("9007199254740993", 9007199254740992, 0, False), ("9007199254740993", 9007199254740993, 0, True),
    ("123456789012345678901234567890", 123456789012345678901234567890, 0, True),
    ("123456789012345678901234567891", 123456789012345678901234567890, 0, False),
    ("1000000001", 1000000000, 0, False), ("12345678890.5", 12345678890, 0, False),
    ("12345678891", 12345678890, 1, True), ("12345678892", 12345678890, 1, False), ("42.0", 42, 0, True),
    ("42.0000001", 42, 0, False), ("41.9999999", 42, 0, False), ("0", 0, 0, True), ("1e-12", 0, 0, False),
    # Small and large numbers.
    ("1.6e-19", 6.6e-34, 0, False), ("6.6e-34", 6.6e-34, 0, True), ("6.7e-34", 6.6e-34, 0, False),
    ("0.0000001", 0.0000002, 0, False), ("6.02e23", 6.02e23, 0, True), ("6.03e23", 6.02e23, 0, False),
    ("6.02×10^23", 6.02e23, 0, True), ("6.02×10^23", 6.02, 0, False), ("6.02 x 10²³", 6.02e23, 0, True),
    ("6.02 * 10**23", 6.02e23, 0, True), (r"6.02 · 10^{23}", 6.02e23, 0, True), ("1.6×10⁻¹⁹", 1.6e-19, 0, True),
    ("1.6×10^−19", 1.6e-19, 0, True), ("1.6e−19", 1.6e-19, 0, True), ("1e999", 1, 0, False), ("1e99999", 1, 0, False),
    ("1E3", 1000, 0, True), ("1e3", 1, 0, False),
    # Decimal fractions and tolerance.
    ("0.30000000000000004", 0.3, 0, True), ("0.3", 0.1 + 0.2, 0, True), ("3.14", 3.14159, 0, False),
    ("3.14", 3.14159, 0.01, True), ("99.5", 100, 0.5, True), ("99.4", 100, 0.5, False), ("3.0000001", 3, 0, False),
    ("2.5", 2, 0.5, True), ("2.51", 2, 0.5, False), ("0.1", 0.1, 0, True), ("1/3", 0.333, 0.001, True),
    # Fractions.
    ("1/2", 0.5, 0, True), ("1/2", 1, 0, False), ("1/2", 2, 0, False), ("8/10", 0.8, 0, True), ("8/10", 8, 0, False),
    ("1 1/2", 1.5, 0, True), ("-1/2", -0.5, 0, True), ("-1 1/2", -1.5, 0, True), ("5/12/2024", 5, 0, True),
    ("1/0", 1, 0, False), ("4/2", 2, 0, True),
    # Grouping.
    ("1,234,567.5", 1234567.5, 0, True), ("1,000", 1, 0, False), ("1,2", 1, 0, True), ("1_000", 1000, 0, True),
    ("1\u00a0000", 1000, 0, True), ("1\u202f000", 1, 0, False), ("1'000", 1000, 0, True), ("1’000’000", 1e6, 0, True),
    ("$1,000", 1000, 0, True), ("1,0000", 1, 0, False), ("1000,5", 1000, 0, True),
    ("1.000.000", 1000000, 0, True), ("1.000.000", 1, 0, False), ("1.000.000,5", 1000000.5, 0, True),
    ("1.234,56", 1234.56, 0, True), ("1.000", 1, 0, True), ("$1,2345", 1, 0, False), ("$1,234", 1234, 0, True),
    ("1.2.3", 1.2, 0, False), ("1,234.5.6", 1234.5, 0, False),
    # Powers.
    ("10^3", 10, 0, False), ("10^3", 1000, 0, True), ("10**3", 1000, 0, True), ("-10^3", -1000, 0, True),
    ("10^{-2}", 0.01, 0, True), ("10³", 1000, 0, True), ("2^10", 1024, 0, True), ("10^3.5", 10, 0, False),
    ("9^99999999", 9, 0, False), ("0^-1", 0, 0, False), ("**5**", 5, 0, True), ("5 **3** more", 5, 0, True),
    # Prose.
    ("The answer is 42.", 42, 0, True), ("first 1, then 2", 2, 0, False), ("60%", 60, 0, True), ("60%", 0.6, 0, False),
    ("no number", 0, 0, False), ("", 0, 0, False), ("five", 5, 0, False), ("2024-05-01", 2024, 0, True),
    ("x = 5e", 5, 0, True), ("5 apples", 5, 0, True), ("**5**", 5, 0, True), ("5.", 5, 0, True), (".5", 0.5, 0, True),
    (".5", 5, 0, False), ("5,", 5, 0, True), ("nan", 0, 0, False), ("inf", 0, 0, False), ("٣", 3, 0, False),
]  # fmt: skip
