"""Numbers as Java prints them, for comparing texts. Pure."""


def java_double(value: float) -> str:
    """Format as `Double.toString`: the fewest digits that identify the number, at least one after the point, and scientific
    notation from 1E7 up and below 1E-3."""
    shortest = repr(float(value))
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return shortest
    significant = shortest.lstrip("-").partition("e")[0].replace(".", "").strip("0")
    mantissa, _, exponent = f"{value:.{max(len(significant) - 1, 1)}e}".partition("e")
    return f"{mantissa}E{int(exponent)}"
