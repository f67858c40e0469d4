"""Numbers as words: an odd part and a power of two, so that 96 and 192 have similar words.

``n = odd * 2**power``. The odd part is written as ``(odd - 1) / 2`` in base 256, most significant
digit first. Almost all extents of real networks need one digit, so they are two tokens.
"""

from __future__ import annotations

from tlmd.language.vocabulary import DIGIT_BASE, MAX_POWER


def split(n: int) -> tuple[int, int]:
    """The odd part and the power of two of a positive number."""
    power = (n & -n).bit_length() - 1
    return n >> power, power


def width(n: int) -> int:
    """How many digits the odd part of `n` needs (1 for 0)."""
    half, digits = (split(n)[0] >> 1) if n else 0, 1
    while half >= DIGIT_BASE:
        half //= DIGIT_BASE
        digits += 1
    return digits


def fixed(n: int, digits: int) -> list[str]:
    """Words of ``n >= 0``: exactly `digits` digits of the odd part, then the power.

    Raises `ValueError` if the language has no words for `n` (negative, too many digits, power above
    31).
    """
    if n == 0:
        return ["odd:0"] * digits + ["zero"]
    if n < 0 or width(n) > digits or split(n)[1] > MAX_POWER:
        raise ValueError(f"{n} cannot be written with {digits} digits")
    odd, power = split(n)
    half, words = odd >> 1, []
    for _ in range(digits):
        half, digit = divmod(half, DIGIT_BASE)
        words.append(f"odd:{digit}")
    return [*reversed(words), f"power:{power}"]


def parse_fixed(words: list[str]) -> int:
    """The number that `fixed` wrote as `words`. Raises `ValueError` for other words."""
    *digits, last = words
    half = 0
    for word in digits:
        kind, _, digit = word.partition(":")
        if kind != "odd":
            raise ValueError(f"not a digit: {word}")
        half = half * DIGIT_BASE + int(digit)
    if last == "zero":
        return 0
    kind, _, power = last.partition(":")
    if kind != "power":
        raise ValueError(f"not a power: {last}")
    return (2 * half + 1) << int(power)


def free(n: int) -> list[str]:
    """Words of any integer, with a sign and a digit count if needed, so that their end is clear."""
    sign = ["minus"] if n < 0 else []
    digits = width(abs(n))
    return [*sign, *([f"digits:{digits}"] if digits > 1 else []), *fixed(abs(n), digits)]


def parse_free(words: list[str]) -> tuple[int, list[str]]:
    """The number at the start of `words`, and the words after it."""
    sign = 1
    if words[0] == "minus":
        sign, words = -1, words[1:]
    digits = 1
    if words[0].startswith("digits:"):
        digits, words = int(words[0].partition(":")[2]), words[1:]
    return sign * parse_fixed(words[: digits + 1]), words[digits + 1 :]
