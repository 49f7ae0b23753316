// y = (x - mean)·rstd·weight + bias by rows of N, rstd = 1/√(variance + eps); with a residual, of s = x + residual.
// One block a row: the row is read once, and kept in shared memory in the arithmetic's type while it fits. With
// x_hat = (x - mean)·rstd and g = grad_y·weight:  grad_x = rstd·(g - mean(g) - x_hat·mean(g·x_hat)).

#include <algorithm>
#include <optional>
#include <vector>

constexpr int64_t kSharedBytes = 32 * 1024;
constexpr int kSumThreads = 256;

// N elements of which `left` are inside the row; the rest are 0. Where rows are aligned they are whole packs.
template <typename Acc, int N, typename T>
__device__ Pack<Acc, N> read_pack(const T* from, int64_t left, bool aligned) {
  Pack<Acc, N> values;
  if (aligned) {
    const Pack<T, N> raw = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
    for (int k = 0; k < N; ++k) values.element[k] = static_cast<Acc>(raw.element[k]);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) values.element[k] = k < left ? static_cast<Acc>(from[k]) : Acc(0);
  }
  return values;
}

template <int N, typename T, typename Acc>
__device__ void write_pack(T* to, const Pack<Acc, N>& values, int64_t left, bool aligned) {
  if (aligned) {
    Pack<T, N> raw;
#pragma unroll
    for (int k = 0; k < N; ++k) raw.element[k] = static_cast<T>(values.element[k]);
    *reinterpret_cast<Pack<T, N>*>(to) = raw;
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (k < left) to[k] = static_cast<T>(values.element[k]);
    }
  }
}

// The sum over the block, in every thread. shared: 33 elements.
template <typename Acc>
__device__ Acc block_sum(Acc value, Acc* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  __syncthreads();  // the sum before may still be read
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = lane < warps ? shared[lane] : Acc(0);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    if (lane == 0) shared[32] = value;
  }
  __syncthreads();
  return shared[32];
}

template <typename T, int P, typename Acc = at::opmath_type<T>>
__global__ void __launch_bounds__(1024)
    layer_norm_forward_kernel(int64_t width, Acc eps, bool aligned, bool staged, const T* __restrict__ x,
                              const T* __restrict__ residual, const T* __restrict__ weight, const T* __restrict__ bias,
                              T* __restrict__ y, T* __restrict__ s, Acc* __restrict__ stats) {
  extern __shared__ __align__(32) unsigned char memory[];
  Acc* const row = reinterpret_cast<Acc*>(memory);
  __shared__ Acc shared[33];
  const int64_t begin = blockIdx.x * width, step = static_cast<int64_t>(blockDim.x) * P;
  const auto value = [&](int64_t i) {
    Pack<Acc, P> v = read_pack<Acc, P>(x + begin + i, width - i, aligned);
    if (residual) {
      const Pack<Acc, P> r = read_pack<Acc, P>(residual + begin + i, width - i, aligned);
#pragma unroll
      for (int k = 0; k < P; ++k) v.element[k] += r.element[k];
    }
    return v;
  };
  // A thread takes from the row what it has put there itself.
  const auto again = [&](int64_t i) { return staged ? *reinterpret_cast<const Pack<Acc, P>*>(row + i) : value(i); };

  Acc sum = 0;
  for (int64_t i = threadIdx.x * P; i < width; i += step) {
    const Pack<Acc, P> v = value(i);
    if (staged) *reinterpret_cast<Pack<Acc, P>*>(row + i) = v;
    if (s) write_pack<P>(s + begin + i, v, width - i, aligned);
#pragma unroll
    for (int k = 0; k < P; ++k) sum += v.element[k];
  }
  const Acc mean = block_sum(sum, shared) / static_cast<Acc>(width);

  Acc squares = 0;
  for (int64_t i = threadIdx.x * P; i < width; i += step) {
    const Pack<Acc, P> v = again(i);
#pragma unroll
    for (int k = 0; k < P; ++k) {
      if (i + k < width) squares += (v.element[k] - mean) * (v.element[k] - mean);
    }
  }
  const Acc rstd = ::rsqrt(block_sum(squares, shared) / static_cast<Acc>(width) + eps);

  for (int64_t i = threadIdx.x * P; i < width; i += step) {
    Pack<Acc, P> v = again(i);
#pragma unroll
    for (int k = 0; k < P; ++k) v.element[k] = (v.element[k] - mean) * rstd;
    if (weight) {
      const Pack<Acc, P> w = read_pack<Acc, P>(weight + i, width - i, aligned);
      const Pack<Acc, P> b = read_pack<Acc, P>(bias + i, width - i, aligned);
#pragma unroll
      for (int k = 0; k < P; ++k) v.element[k] = v.element[k] * w.element[k] + b.element[k];
    }
    write_pack<P>(y + begin + i, v, width - i, aligned);
  }
  if (stats && threadIdx.x == 0) {
    stats[blockIdx.x] = mean;
    stats[gridDim.x + blockIdx.x] = rstd;
  }
}

template <typename T, int P, typename Acc = at::opmath_type<T>>
__global__ void __launch_bounds__(1024)
    layer_norm_grad_x_kernel(int64_t width, bool aligned, const T* __restrict__ grad_y, const T* __restrict__ x,
                             const Acc* __restrict__ stats, const T* __restrict__ weight,
                             const T* __restrict__ grad_s, T* __restrict__ grad_x) {
  __shared__ Acc shared[33];
  const int64_t begin = blockIdx.x * width, step = static_cast<int64_t>(blockDim.x) * P;
  const Acc mean = stats[blockIdx.x], rstd = stats[gridDim.x + blockIdx.x];
  const auto gradient = [&](int64_t i) {
    Pack<Acc, P> g = read_pack<Acc, P>(grad_y + begin + i, width - i, aligned);
    if (weight) {
      const Pack<Acc, P> w = read_pack<Acc, P>(weight + i, width - i, aligned);
#pragma unroll
      for (int k = 0; k < P; ++k) g.element[k] *= w.element[k];
    }
    return g;
  };

  Acc along_one = 0, along_x = 0;
  for (int64_t i = threadIdx.x * P; i < width; i += step) {
    const Pack<Acc, P> g = gradient(i);
    const Pack<Acc, P> v = read_pack<Acc, P>(x + begin + i, width - i, aligned);
#pragma unroll
    for (int k = 0; k < P; ++k) {
      along_one += g.element[k];
      along_x += g.element[k] * (v.element[k] - mean) * rstd;
    }
  }
  const Acc one = block_sum(along_one, shared) / static_cast<Acc>(width);
  const Acc other = block_sum(along_x, shared) / static_cast<Acc>(width);

  // What was read is in the cache still, unless the rows are very long.
  for (int64_t i = threadIdx.x * P; i < width; i += step) {
    Pack<Acc, P> g = gradient(i);
    const Pack<Acc, P> v = read_pack<Acc, P>(x + begin + i, width - i, aligned);
#pragma unroll
    for (int k = 0; k < P; ++k) g.element[k] = rstd * (g.element[k] - one - (v.element[k] - mean) * rstd * other);
    if (grad_s) {
      const Pack<Acc, P> r = read_pack<Acc, P>(grad_s + begin + i, width - i, aligned);
#pragma unroll
      for (int k = 0; k < P; ++k) g.element[k] += r.element[k];
    }
    write_pack<P>(grad_x + begin + i, g, width - i, aligned);
  }
}

// Sums over the rows of a slice: of grad_y·x_hat and of grad_y. A thread has P columns, and every blockDim.y-th row of
// its slice; sums: (2, gridDim.y, width).
template <typename T, int P, typename Acc = at::opmath_type<T>>
__global__ void layer_norm_column_sums_kernel(int64_t rows, int64_t width, bool aligned, const T* __restrict__ grad_y,
                                              const T* __restrict__ x, const Acc* __restrict__ stats,
                                              Acc* __restrict__ sums) {
  __shared__ Acc partial[2][kSumThreads * P];
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * P;
  Pack<Acc, P> products{}, grads{};
  if (column < width) {
    const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;
    for (int64_t m = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; m < rows; m += step) {
      const Acc mean = stats[m], rstd = stats[rows + m];
      const Pack<Acc, P> g = read_pack<Acc, P>(grad_y + m * width + column, width - column, aligned);
      const Pack<Acc, P> v = read_pack<Acc, P>(x + m * width + column, width - column, aligned);
#pragma unroll
      for (int k = 0; k < P; ++k) {
        products.element[k] += g.element[k] * (v.element[k] - mean) * rstd;
        grads.element[k] += g.element[k];
      }
    }
  }
  const int at = (threadIdx.y * blockDim.x + threadIdx.x) * P;
#pragma unroll
  for (int k = 0; k < P; ++k) {
    partial[0][at + k] = products.element[k];
    partial[1][at + k] = grads.element[k];
  }
  __syncthreads();
  const int columns = blockDim.x * P;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int c = thread; c < 2 * columns; c += kSumThreads) {
    const int which = c / columns, mine = c % columns;
    const int64_t to = static_cast<int64_t>(blockIdx.x) * columns + mine;
    if (to >= width) continue;
    Acc sum = 0;
    for (unsigned slice = 0; slice < blockDim.y; ++slice) sum += partial[which][slice * columns + mine];
    sums[(static_cast<int64_t>(which) * gridDim.y + blockIdx.y) * width + to] = sum;
  }
}

static int threads_of_a_row(int64_t width, int pack) {
  const int64_t packs = (width + pack - 1) / pack;
  int threads = 64;
  while (threads < 1024 && threads * 4 < packs) threads *= 2;
  return threads;
}

// Whether every row begins and ends with a whole pack.
static bool whole_packs(int64_t width, int pack, std::initializer_list<const void*> pointers) {
  bool aligned = width % pack == 0;
  for (const void* p : pointers) aligned = aligned && reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
  return aligned;
}

template <typename T>
static const T* pointer_or_null(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? tensor->const_data_ptr<T>() : nullptr;
}

static at::Tensor new_stats(const at::Tensor& x, at::IntArrayRef shape) {
  return at::empty(shape, x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
}

// x: contiguous (M, N), as is the residual. Returns y, then s where there is a residual, then the statistics (2, M, 1)
// where they are wanted.
std::vector<at::Tensor> layer_norm_forward(at::Tensor x, std::optional<at::Tensor> residual,
                                           std::optional<at::Tensor> weight, std::optional<at::Tensor> bias,
                                           double eps, bool want_stats) {
  TORCH_CHECK(x.is_cuda() && x.dim() == 2 && x.is_contiguous(), "layer_norm_forward: x must be contiguous, on a GPU");
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t rows = x.size(0), width = x.size(1);
  at::Tensor y = at::empty_like(x), s, stats;
  if (residual) s = at::empty_like(x);
  if (want_stats) stats = new_stats(x, {2, rows, 1});
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "layer_norm_forward", [&] {
    using acc_t = at::opmath_type<scalar_t>;
    constexpr int kPack = 16 / sizeof(scalar_t);
    const scalar_t* const w = pointer_or_null<scalar_t>(weight);
    const scalar_t* const b = pointer_or_null<scalar_t>(bias);
    const scalar_t* const r = pointer_or_null<scalar_t>(residual);
    const bool aligned = whole_packs(width, kPack, {x.const_data_ptr(), w, b, r});
    const int64_t bytes = (width + kPack - 1) / kPack * kPack * static_cast<int64_t>(sizeof(acc_t));
    const bool staged = bytes <= kSharedBytes;
    layer_norm_forward_kernel<scalar_t, kPack>
        <<<rows, threads_of_a_row(width, kPack), staged ? bytes : 0, c10::cuda::getCurrentCUDAStream()>>>(
            width, static_cast<acc_t>(eps), aligned, staged, x.const_data_ptr<scalar_t>(), r, w, b,
            y.mutable_data_ptr<scalar_t>(), residual ? s.mutable_data_ptr<scalar_t>() : nullptr,
            want_stats ? stats.mutable_data_ptr<acc_t>() : nullptr);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  std::vector<at::Tensor> results{y};
  if (residual) results.push_back(s);
  if (want_stats) results.push_back(stats);
  return results;
}

// grad_y, x, grad_s: contiguous (M, N); stats: (2, M, 1). Returns grad_x, to which grad_s is added, and with a weight
// the gradients of weight and bias, added up in a fixed order.
std::vector<at::Tensor> layer_norm_backward(at::Tensor grad_y, at::Tensor x, at::Tensor stats,
                                            std::optional<at::Tensor> weight, std::optional<at::Tensor> grad_s) {
  TORCH_CHECK(x.is_cuda() && x.dim() == 2 && x.is_contiguous() && grad_y.is_contiguous() && stats.is_contiguous(),
              "layer_norm_backward: grad_y, x and stats must be contiguous, and on a GPU");
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t rows = x.size(0), width = x.size(1);
  at::Tensor grad_x = at::empty_like(x), sums;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "layer_norm_backward", [&] {
    using acc_t = at::opmath_type<scalar_t>;
    constexpr int kPack = 16 / sizeof(scalar_t);
    const scalar_t* const w = pointer_or_null<scalar_t>(weight);
    const scalar_t* const r = pointer_or_null<scalar_t>(grad_s);
    const bool aligned = whole_packs(width, kPack, {grad_y.const_data_ptr(), x.const_data_ptr(), w, r});
    layer_norm_grad_x_kernel<scalar_t, kPack><<<rows, threads_of_a_row(width, kPack), 0, stream>>>(
        width, aligned, grad_y.const_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(), stats.const_data_ptr<acc_t>(),
        w, r, grad_x.mutable_data_ptr<scalar_t>());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    if (!weight) return;
    const int64_t packs = (width + kPack - 1) / kPack;
    unsigned across = 32;
    while (across > 1 && across / 2 >= packs) across /= 2;
    const unsigned slices = kSumThreads / across;
    const int64_t columns = (packs + across - 1) / across;
    // Blocks enough to fill the GPU, and rows enough for each block.
    int multiprocessors = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, x.get_device()));
    const int64_t enough = std::max<int64_t>(1, 16LL * multiprocessors / columns);
    const int64_t parts = std::min<int64_t>((rows + 4 * slices - 1) / (4 * slices), enough);
    sums = new_stats(x, {2, parts, width});
    const dim3 grid(columns, parts), block(across, slices);
    layer_norm_column_sums_kernel<scalar_t, kPack><<<grid, block, 0, stream>>>(
        rows, width, aligned, grad_y.const_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(),
        stats.const_data_ptr<acc_t>(), sums.mutable_data_ptr<acc_t>());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  if (!weight) return {grad_x};
  const at::Tensor grads = sums.sum(1).to(x.scalar_type());
  return {grad_x, grads[0], grads[1]};
}
