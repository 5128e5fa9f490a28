"""Colours that can be told from the page in both themes: at least 3:1 against white and against the dark page."""

from __future__ import annotations

from colorsys import hls_to_rgb, rgb_to_hls
from functools import cache

__all__ = ["contrast", "legible"]

PAGES = ("#ffffff", "#1b1f25")  # the lightest and the lightest dark background that a mark lies on
MIN_CONTRAST = 3.05  # WCAG asks for 3 for what is no text; a little above, since colours are rounded


@cache
def legible(colour: str) -> str:
    """Return the colour, made lighter or darker in steps until it stands out on both pages; its hue stays."""
    hue, light, saturation = rgb_to_hls(*_channels(colour))
    best = colour
    for _ in range(100):
        short = [contrast(best, page) < MIN_CONTRAST for page in PAGES]
        if not any(short):
            break
        light += 0.005 if short[1] else -0.005
        best = "#" + "".join(f"{round(c * 255):02x}" for c in hls_to_rgb(hue, min(max(light, 0.0), 1.0), saturation))
    return best


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2.1 defines it, 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _channels(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _channels(colour: str) -> tuple[float, float, float]:
    return int(colour[1:3], 16) / 255, int(colour[3:5], 16) / 255, int(colour[5:7], 16) / 255
