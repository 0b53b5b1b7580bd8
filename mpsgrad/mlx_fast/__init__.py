"""``mlx.core.fast.metal_kernel`` without a Mac: MLX's interface for kernels of one's own, on CPUs and NVIDIA GPUs.

``mpsgrad.mlx_fast.metal_kernel`` takes the place of ``mx.fast.metal_kernel``, also where MLX is installed for the CPU:
``mx.fast.metal_kernel = mpsgrad.mlx_fast.metal_kernel``. MLX itself is not needed: inputs may be NumPy arrays, and the
types of outputs and of template arguments NumPy's, or their names (``"float32"``, ``"bfloat16"``).

What is kept, as of MLX 0.32:

* ``source`` is the body of a kernel. Its signature follows from the names of inputs and outputs, the types of the
  arrays, and what the body mentions: ``x_shape``, ``x_strides``, ``x_ndim`` and the attributes of Metal's positions. An
  input of less than 8 elements lies in ``constant``, and one without dimensions is a reference.
* ``template``, ``header``, ``init_value``, ``atomic_outputs``, ``ensure_row_contiguous`` and ``compile_options``.
* The body may use ``elem_to_loc`` and its like, ``ceildiv``, ``Limits``, ``log1p``, ``bfloat16_t``, ``float16_t`` and
  ``complex64_t``.
* Metal 3.2, without fast math unless ``compile_options`` says so.
* Arguments are converted as ``mx.array`` does: float64 to float32, Python's numbers to int32 and float32.

What differs:

* A call returns when the kernel has run. It gives MLX's arrays if an input or a type is MLX's, else NumPy's; bfloat16
  is that of ``ml_dtypes`` then, and without that package refused.
* Outputs without ``init_value`` begin with zeros.
* Errors name file ``name`` and the line of ``source``, or ``name (header)``.
* ``check`` of a kernel takes the arguments of a call and says what it does wrong, as ``KernelFunction.check`` does.
* ``stream`` is ignored. Inputs whose strides are negative are copied, and ``x_strides`` are those of the copy.
"""

from mpsgrad.mlx_fast.kernel import MetalKernel, metal_kernel

__all__ = ["MetalKernel", "metal_kernel"]
