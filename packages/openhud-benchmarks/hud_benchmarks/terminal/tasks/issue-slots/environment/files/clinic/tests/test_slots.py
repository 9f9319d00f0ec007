import unittest

from slots import Span, parse, slots


class Slots(unittest.TestCase):
    def test_spans_are_parsed(self):
        self.assertEqual(parse("09:00-12:30, 14:00-18:00"), [Span(540, 750), Span(840, 1080)])

    def test_slots_of_a_morning(self):
        self.assertEqual(slots("09:00-10:05", "11:00-12:00", 30), ["09:00-09:30", "09:30-10:00"])

    def test_other_texts_are_refused(self):
        with self.assertRaises(ValueError):
            parse("nine to five")
