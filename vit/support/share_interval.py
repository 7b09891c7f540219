"""The confidence interval of a share of images."""

import math
from statistics import NormalDist


def share_interval(share: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of a share of ``count`` independent images (Wilson 1927).

    >>> [round(end, 3) for end in share_interval(0.9, 100)]
    [0.826, 0.945]
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)
