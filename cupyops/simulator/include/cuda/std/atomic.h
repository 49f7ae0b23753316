// Replaces <cuda/std/atomic>: atomic objects of system scope.
#pragma once

#include "../atomic.h"

namespace cuda {
namespace std {

using ::cuda::memory_order;
using ::cuda::memory_order_acq_rel;
using ::cuda::memory_order_acquire;
using ::cuda::memory_order_consume;
using ::cuda::memory_order_relaxed;
using ::cuda::memory_order_release;
using ::cuda::memory_order_seq_cst;
template <typename T> using atomic = ::cuda::atomic<T, thread_scope_system>;
template <typename T> using atomic_ref = ::cuda::atomic_ref<T, thread_scope_system>;

}  // namespace std
}  // namespace cuda
