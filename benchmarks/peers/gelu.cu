// none: y = x·Φ(x), Φ(x) = ½·(1 + erf(x/√2));  tanh: y = ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kInvSqrt2Pi = 0.39894228040143267794;
constexpr double kSqrt2OverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;

template <typename T, bool kTanh>
struct Gelu {
  using acc_t = at::opmath_type<T>;
  __device__ T operator()(T value) const {
    const acc_t x = static_cast<acc_t>(value);
    const acc_t half_x = acc_t(0.5) * x;
    if constexpr (kTanh) {
      return static_cast<T>(half_x * (acc_t(1) + ::tanh(acc_t(kSqrt2OverPi) * (x + acc_t(kCubic) * x * x * x))));
    } else {
      return static_cast<T>(half_x * (acc_t(1) + ::erf(x * acc_t(kSqrtHalf))));
    }
  }
};

template <typename T, bool kTanh>
struct GeluBackward {
  using acc_t = at::opmath_type<T>;
  __device__ T operator()(T grad_value, T value) const {
    const acc_t grad = static_cast<acc_t>(grad_value), x = static_cast<acc_t>(value);
    if constexpr (kTanh) {
      const acc_t t = ::tanh(acc_t(kSqrt2OverPi) * (x + acc_t(kCubic) * x * x * x));
      const acc_t slope = acc_t(kSqrt2OverPi) * (acc_t(1) + acc_t(3 * kCubic) * x * x);
      return static_cast<T>(grad * acc_t(0.5) * (acc_t(1) + t + x * (acc_t(1) - t * t) * slope));
    } else {
      const acc_t cdf = acc_t(0.5) * (acc_t(1) + ::erf(x * acc_t(kSqrtHalf)));
      const acc_t pdf = acc_t(kInvSqrt2Pi) * ::exp(acc_t(-0.5) * x * x);
      return static_cast<T>(grad * (cdf + x * pdf));
    }
  }
};

at::Tensor gelu_forward(bool tanh, at::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "gelu_forward: x must be on a GPU");
  x = x.contiguous();
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "gelu_forward", [&] {
    return tanh ? pointwise<scalar_t>(Gelu<scalar_t, true>{}, x) : pointwise<scalar_t>(Gelu<scalar_t, false>{}, x);
  });
}

at::Tensor gelu_backward(bool tanh, at::Tensor grad_y, at::Tensor x) {
  TORCH_CHECK(x.is_cuda() && grad_y.is_cuda(), "gelu_backward: both tensors must be on a GPU");
  TORCH_CHECK(grad_y.sizes() == x.sizes() && grad_y.scalar_type() == x.scalar_type(),
              "gelu_backward: grad_y must have the shape and dtype of x");
  grad_y = grad_y.contiguous();
  x = x.contiguous();
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "gelu_backward", [&] {
    return tanh ? pointwise<scalar_t>(GeluBackward<scalar_t, true>{}, grad_y, x)
                : pointwise<scalar_t>(GeluBackward<scalar_t, false>{}, grad_y, x);
  });
}
