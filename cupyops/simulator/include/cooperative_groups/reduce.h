// Replaces CUDA's cooperative_groups/reduce.h. Each lane combines the lanes' values in a tree, as shuffles do on a GPU.
#pragma once

#include "../cooperative_groups.h"

namespace cooperative_groups {

template <typename Group, typename T, typename Operator>
CUPYOPS_INTRINSIC details::bare<T> reduce(const Group& group, T&& value, Operator&& combine) {
    details::bare<T> sum = value;
    const unsigned count = group.num_threads(), rank = group.thread_rank();
    for (unsigned step = 1; step < count; step *= 2) {
        const auto other = group.shfl(sum, int(rank + step < count ? rank + step : rank));
        if (rank % (2 * step) == 0 && rank + step < count) sum = combine(sum, other);
    }
    return group.shfl(sum, 0);
}

}  // namespace cooperative_groups
