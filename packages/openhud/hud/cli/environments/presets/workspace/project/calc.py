"""A calculator with a mistake."""


def mean(numbers):
    return sum(numbers) / 2
