"""metalcompute 0.2.9 without a Mac: its interface and its semantics, over the CPU or GPU that this machine has.

``import mpsgrad.metalcompute as mc`` takes the place of ``import metalcompute as mc``; like there, ``Device``,
``get_devices``, ``error`` and the functions of version 0.1 (``init``, ``compile``, ``run``, ``rerun``, ``release``) are
all there is. Importing it compiles no shader of this package.

What is kept, because programs rely on it:

* Metal 2.3 with fast math. ``kernel`` raises ``error`` with the compiler's messages, each with its line; what
  ``mpsgrad check`` refuses is refused first, in Apple's words where they are known.
* A grid of one dimension, rounded up to whole threadgroups. The stray threads run, and see positions from the count
  on. Threadgroups have the threads that ``[[max_total_threads_per_threadgroup(N)]]`` gives, rounded down to simdgroups
  of 32, and 1024 without it: what Apple GPUs give a kernel that has registers enough for it.
* Memory beyond a buffer's end that stray threads may write: at least 64 KiB, and as much as the buffer itself up to
  16 MiB.
* Buffers are zero at first, offer the buffer protocol and nothing else. Other objects with that protocol are copied
  when a call is made, as bytes; so are numbers of NumPy, while Python's are lengths of zeroed buffers.
* Calls run in the order in which they were made and return before they have run. Releasing the handle of a call waits
  for it and for all before it.
* The words of errors, also where metalcompute's two halves number them differently: a pipeline that cannot be made is
  called ``Cannot create command encoder``.
* A call may have more or fewer buffers than the kernel: the rest is ignored, what is missing reads as zero.

What differs:

* What ends the process there raises ``error`` from ``Kernel.function`` here: a
  ``max_total_threads_per_threadgroup`` below 32, and arguments that metalcompute cannot set (``[[threadgroup(n)]]``,
  function constants).
* A failure while a kernel runs is reported on standard error when its handle is released; metalcompute says nothing.
* Other Python threads run while a handle's release waits; metalcompute keeps the global lock.
* Wrong types of arguments that metalcompute misreads raise ``TypeError``, as do keywords, which it ignores.
* NaN and infinity keep their meaning under fast math; Metal does not promise that.
* An access far outside a buffer can end the process, as on any CPU.
"""

from mpsgrad.metalcompute.exception import error
from mpsgrad.metalcompute.objects import Device, get_devices
from mpsgrad.metalcompute.procedural import compile, init, release, rerun, run

__all__ = ["Device", "compile", "error", "get_devices", "init", "release", "rerun", "run"]
