"""The window of pixels that a kernel was made with, as properties."""

from __future__ import annotations


class WindowProperties:
    """What kernels with a window share: how many taps it has, how far apart they are, and the windows."""

    _window: tuple[int, int, int, int, int, int]

    @property
    def kernel_width(self) -> int:
        """Taps along x."""
        return self._window[0]

    @property
    def kernel_height(self) -> int:
        """Taps along y."""
        return self._window[1]

    @property
    def stride_in_pixels_x(self) -> int:
        return self._window[2]

    @property
    def stride_in_pixels_y(self) -> int:
        return self._window[3]

    @property
    def dilation_rate_x(self) -> int:
        return self._window[4]

    @property
    def dilation_rate_y(self) -> int:
        return self._window[5]
