// One step of an LLTM and its gradient: products by PyTorch, and what stands between them in one kernel each, as a careful
// author of an extension would write it.
//
//   [h, x]·Wᵀ + b = (z_i, z_o, z_g)    c' = c + elu(z_g)·σ(z_i)    h' = tanh(c')·σ(z_o)

#include <vector>

template <typename Acc>
__device__ Acc lltm_sigmoid(Acc z) {
  return Acc(1) / (Acc(1) + exp(-z));
}

template <typename T, typename Acc>
__global__ void lltm_forward_kernel(
    int64_t n, int64_t state, const T* __restrict__ gates, const T* __restrict__ old_cell, T* __restrict__ new_h,
    T* __restrict__ new_cell) {
  for (int64_t k = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; k < n; k += int64_t(gridDim.x) * blockDim.x) {
    const T* z = gates + k / state * 3 * state + k % state;
    const Acc i = lltm_sigmoid(Acc(z[0])), o = lltm_sigmoid(Acc(z[state])), z_g = Acc(z[2 * state]);
    const Acc g = z_g > Acc(0) ? z_g : expm1(z_g);
    const Acc c = Acc(old_cell[k]) + g * i;
    new_cell[k] = static_cast<T>(c);
    new_h[k] = static_cast<T>(tanh(c) * o);
  }
}

template <typename T, typename Acc>
__global__ void lltm_backward_kernel(
    int64_t n, int64_t state, const T* __restrict__ grad_h, const T* __restrict__ grad_cell, const T* __restrict__ gates,
    const T* __restrict__ new_cell, T* __restrict__ grad_gates, T* __restrict__ grad_old_cell) {
  for (int64_t k = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; k < n; k += int64_t(gridDim.x) * blockDim.x) {
    const int64_t at = k / state * 3 * state + k % state;
    const Acc i = lltm_sigmoid(Acc(gates[at])), o = lltm_sigmoid(Acc(gates[at + state])), z_g = Acc(gates[at + 2 * state]);
    const Acc g = z_g > Acc(0) ? z_g : expm1(z_g), t = tanh(Acc(new_cell[k])), dh = Acc(grad_h[k]);
    const Acc dc = Acc(grad_cell[k]) + dh * o * (Acc(1) - t * t);
    grad_old_cell[k] = static_cast<T>(dc);
    grad_gates[at] = static_cast<T>(dc * g * i * (Acc(1) - i));
    grad_gates[at + state] = static_cast<T>(dh * t * o * (Acc(1) - o));
    grad_gates[at + 2 * state] = static_cast<T>(dc * i * (g > Acc(0) ? Acc(1) : g + Acc(1)));
  }
}

inline unsigned lltm_blocks(int64_t n) { return static_cast<unsigned>(std::min<int64_t>((n + 255) / 256, 1 << 20)); }

std::vector<at::Tensor> lltm_cuda_forward(const at::Tensor& input, const at::Tensor& weights, const at::Tensor& bias, const at::Tensor& old_h, const at::Tensor& old_cell) {
  const c10::cuda::CUDAGuard guard(input.device());
  const at::Tensor x = at::cat({old_h, input}, 1), gates = at::addmm(bias, x, weights.t()), cell = old_cell.contiguous();
  const int64_t n = cell.numel(), state = cell.size(1);
  at::Tensor new_h = at::empty_like(cell), new_cell = at::empty_like(cell);
  if (n) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, input.scalar_type(), "lltm_forward", [&] {
      lltm_forward_kernel<scalar_t, at::opmath_type<scalar_t>><<<lltm_blocks(n), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
          n, state, gates.const_data_ptr<scalar_t>(), cell.const_data_ptr<scalar_t>(), new_h.mutable_data_ptr<scalar_t>(),
          new_cell.mutable_data_ptr<scalar_t>());
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  }
  return {new_h, new_cell, x, gates};
}

std::vector<at::Tensor> lltm_cuda_backward(const at::Tensor& grad_h, const at::Tensor& grad_cell, const at::Tensor& weights, const at::Tensor& x, const at::Tensor& gates, const at::Tensor& new_cell) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor dh = grad_h.contiguous(), dc = grad_cell.contiguous();
  const int64_t n = new_cell.numel(), state = new_cell.size(1);
  at::Tensor dz = at::empty_like(gates), grad_old_cell = at::empty_like(new_cell);
  if (n) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "lltm_backward", [&] {
      lltm_backward_kernel<scalar_t, at::opmath_type<scalar_t>><<<lltm_blocks(n), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
          n, state, dh.const_data_ptr<scalar_t>(), dc.const_data_ptr<scalar_t>(), gates.const_data_ptr<scalar_t>(),
          new_cell.const_data_ptr<scalar_t>(), dz.mutable_data_ptr<scalar_t>(), grad_old_cell.mutable_data_ptr<scalar_t>());
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  }
  const at::Tensor dx = dz.mm(weights);
  return {dx.slice(1, state), dz.t().mm(x), dz.sum(0), dx.slice(1, 0, state), grad_old_cell};
}
