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
        """Source pixels from one window to the next along x."""
        return self._window[2]

    @property
    def stride_in_pixels_y(self) -> int:
        """Source pixels from one window to the next along y."""
        return self._window[3]

    @property
    def dilation_rate_x(self) -> int:
        """Pixels from one column of taps to the next; 1 leaves none out."""
        return self._window[4]

    @property
    def dilation_rate_y(self) -> int:
        """Pixels from one row of taps to the next; 1 leaves none out."""
        return self._window[5]
