// One step of an LLTM in C++ by PyTorch's operators, and its gradient, as the tutorial on extensions would have it, with the
// derivative of elu right at and below 0, and the gradients that are wanted alone.
//
//   [h, x]·Wᵀ + b = (z_i, z_o, z_g)    c' = c + elu(z_g)·σ(z_i)    h' = tanh(c')·σ(z_o)

#include <torch/extension.h>

#include <vector>

std::vector<at::Tensor> lltm_cpp_forward(
    const at::Tensor& input, const at::Tensor& weights, const at::Tensor& bias, const at::Tensor& old_h,
    const at::Tensor& old_cell) {
  const at::Tensor x = at::cat({old_h, input}, 1);
  const std::vector<at::Tensor> gates = at::addmm(bias, x, weights.t()).chunk(3, 1);
  const at::Tensor i = at::sigmoid(gates[0]), o = at::sigmoid(gates[1]), g = at::elu(gates[2]);
  const at::Tensor new_cell = at::addcmul(old_cell, g, i);
  const at::Tensor t = at::tanh(new_cell);
  return {t * o, new_cell, x, i, o, g, t};
}

std::vector<at::Tensor> lltm_cpp_backward(
    const at::Tensor& grad_h, const at::Tensor& grad_cell, const at::Tensor& weights, const at::Tensor& x,
    const at::Tensor& i, const at::Tensor& o, const at::Tensor& g, const at::Tensor& t) {
  const at::Tensor dc = grad_cell + at::tanh_backward(grad_h * o, t);
  const at::Tensor slope = at::where(g > 0, at::ones_like(g), g + 1);
  const at::Tensor dz =
      at::cat({at::sigmoid_backward(dc * g, i), at::sigmoid_backward(grad_h * t, o), dc * i * slope}, 1);
  const at::Tensor dx = dz.mm(weights);
  const int64_t state = grad_h.size(1);
  return {dx.slice(1, state), dz.t().mm(x), dz.sum(0), dx.slice(1, 0, state), dc};
}
