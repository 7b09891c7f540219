"""The check that features are finite."""

from torch import Tensor


def check_finite(features: Tensor) -> None:
    """Check that features, (N, D) or (B, N, D), are finite: with NaN, a search would return meaningless neighbours.

    Raises:
        ValueError: If they contain NaN or infinity.
    """
    of_rows = features.isfinite().all(dim=-1)
    if not of_rows.all():
        raise ValueError(
            f"{int((~of_rows).sum())} of {of_rows.numel()} features contain NaN or infinity: the model diverged, or "
            "its numbers overflow in half precision"
        )
