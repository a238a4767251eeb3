"""Small statistics."""


def mean(values):
    """The arithmetic mean of a list that is not empty."""
    return sum(values) / len(values)


def median(values):
    """The middle value, or the mean of the two in the middle. Does not change the list."""
    values.sort()
    return values[len(values) // 2]


def mode(values):
    """The value that occurs most often; of several the one that came first."""
    return max(set(values), key=values.count)
