// Replaces CUDA's cooperative_groups/memcpy_async.h. Each thread of the group copies a part when it waits.
#pragma once

#include "../cooperative_groups.h"

namespace cooperative_groups {

template <typename Group, typename T, typename Size>
CUPYOPS_INTRINSIC void memcpy_async(const Group& group, T* to, const T* from, const Size& bytes) {
    const CupyopsShare share = cupyops_share(size_t(bytes), group.thread_rank(), group.num_threads());
    cupyops_copy_issue(reinterpret_cast<char*>(to) + share.begin, reinterpret_cast<const char*>(from) + share.begin, share.bytes, 0, nullptr);
    cupyops_copy_commit();
}
// Copies as many elements as both sides have.
template <typename Group, typename T, typename To, typename From>
CUPYOPS_INTRINSIC void memcpy_async(const Group& group, T* to, const To& to_count, const T* from, const From& from_count) {
    const size_t count = size_t(to_count) < size_t(from_count) ? size_t(to_count) : size_t(from_count);
    memcpy_async(group, to, from, count * sizeof(T));
}
template <unsigned Pending, typename Group> CUPYOPS_INTRINSIC void wait_prior(const Group& group) {
    cupyops_copy_wait(Pending);
    group.sync();
}
template <typename Group> CUPYOPS_INTRINSIC void wait(const Group& group) {
    cupyops_copy_wait(0);
    group.sync();
}

}  // namespace cooperative_groups
