// Replaces CUDA's cooperative_groups/scan.h.
#pragma once

#include "../cooperative_groups.h"

namespace cooperative_groups {

template <typename Group, typename T, typename Operator>
CUPYOPS_INTRINSIC details::bare<T> inclusive_scan(const Group& group, T&& value, Operator&& combine) {
    details::bare<T> sum = value;
    for (unsigned step = 1; step < group.num_threads(); step *= 2) {
        const auto other = group.shfl_up(sum, step);
        if (step <= group.thread_rank()) sum = combine(sum, other);
    }
    return sum;
}
// The thread of rank 0 gets a value-initialised result, whatever the operator.
template <typename Group, typename T, typename Operator>
CUPYOPS_INTRINSIC details::bare<T> exclusive_scan(const Group& group, T&& value, Operator&& combine) {
    const auto before = group.shfl_up(inclusive_scan(group, value, combine), 1);
    return group.thread_rank() ? before : details::bare<T>();
}
template <typename Group, typename T> CUPYOPS_INTRINSIC details::bare<T> inclusive_scan(const Group& group, T&& value) {
    return inclusive_scan(group, value, plus<details::bare<T>>());
}
template <typename Group, typename T> CUPYOPS_INTRINSIC details::bare<T> exclusive_scan(const Group& group, T&& value) {
    return exclusive_scan(group, value, plus<details::bare<T>>());
}

}  // namespace cooperative_groups
