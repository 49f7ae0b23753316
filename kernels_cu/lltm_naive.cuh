// One unit of an LLTM cell, written exactly as the formulas of lltm.cuh. The naive kernels use it, and share no
// arithmetic with the fast kernels.
#pragma once

#include "scalar.cuh"

struct NaiveUnit {
    acc_t i, o, g, slope;  // σ(z_i), σ(z_o), elu(z_g), elu'(z_g)

    __device__ NaiveUnit(acc_t z_i, acc_t z_o, acc_t z_g) {
        i = 1 / (1 + exp(-z_i));
        o = 1 / (1 + exp(-z_o));
        g = z_g > 0 ? z_g : expm1(z_g);
        slope = z_g > 0 ? acc_t(1) : exp(z_g);
    }

    // Computes dz = (dL/dz_i, dL/dz_o, dL/dz_g) from c', dh = dL/dh' and dc = dL/dc'. Replaces dc by dL/dc.
    __device__ void back(acc_t new_c, acc_t dh, acc_t& dc, acc_t (&dz)[3]) const {
        const acc_t t = tanh(new_c);
        dc = dc + dh * o * (1 - t * t);
        dz[0] = dc * g * i * (1 - i);
        dz[1] = dh * t * o * (1 - o);
        dz[2] = dc * i * slope;
    }
};
