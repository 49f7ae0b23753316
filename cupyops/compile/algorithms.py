"""Thrust's algorithms as one thread runs them, ``thrust::sort(thrust::seq, a, a + n)``.

A kernel that calls an algorithm of Thrust, with ``thrust::seq`` or without a policy, runs it in each thread alone.
"""

from collections.abc import Collection

__all__ = ["ALGORITHMS", "algorithm_lines"]

_OF = "__host__ __device__ constexpr"
_LESS = "[](const auto& a, const auto& b) { return a < b; }"
_BOUND = (
    "template <class I, class T, class F> {of} I {name}(I first, I last, const T& value, F less) {{\n"
    "    auto count = last - first;\n"
    "    while (count > 0) {{ const auto half = count / 2; "
    "if ({goes}) first += half + 1, count -= half + 1; else count = half; }}\n"
    "    return first;\n}}\n"
    "template <class I, class T> {of} I {name}(I first, I last, const T& value) {{ return {name}(first, last, value, {less}); }}"
)
_EXTREME = (
    "template <class I, class F> {of} I {name}(I first, I last, F less) {{ I found = first; "
    "for (; first != last; ++first) if ({better}) found = first; return found; }}\n"
    "template <class I> {of} I {name}(I first, I last) {{ return {name}(first, last, {less}); }}"
)
_SCAN = (
    "template <class I, class O, class T, class F> {of} O exclusive_scan(I first, I last, O out, T sum, F add) {{ "
    "for (; first != last; ++first, ++out) {{ const T next = add(sum, *first); *out = sum; sum = next; }} return out; }}\n"
    "template <class I, class O, class T> {of} O exclusive_scan(I first, I last, O out, T sum) {{ "
    "return exclusive_scan(first, last, out, sum, [](const T& a, const T& b) {{ return T(a + b); }}); }}\n"
    "template <class I, class O> {of} O exclusive_scan(I first, I last, O out) {{ "
    "return first == last ? out : exclusive_scan(first, last, out, decltype(*first - *first)(0)); }}"
)
# Insertion takes the least room, and threads sort short lists. Equal elements keep their order.
_SORT = (
    "template <class K, class V, class F> {of} void sort_by_key(K first, K last, V values, F less) {{\n"
    "    for (auto i = last - last + 1; i < last - first; ++i) {{\n"
    "        const auto key = first[i]; const auto value = values[i]; auto j = i;\n"
    "        for (; j > 0 && less(key, first[j - 1]); --j) first[j] = first[j - 1], values[j] = values[j - 1];\n"
    "        first[j] = key, values[j] = value;\n    }}\n}}\n"
    "template <class K, class V> {of} void sort_by_key(K first, K last, V values) {{ sort_by_key(first, last, values, {less}); }}"
)
_SORT_ALONE = (
    "template <class I, class F> {of} void {name}(I first, I last, F less) {{\n"
    "    for (I i = first; i != last; ++i) {{\n"
    "        const auto value = *i; I j = i;\n"
    "        for (; j != first && less(value, *(j - 1)); --j) *j = *(j - 1);\n"
    "        *j = value;\n    }}\n}}\n"
    "template <class I> {of} void {name}(I first, I last) {{ {name}(first, last, {less}); }}"
)
_TEXTS = {
    "lower_bound": _BOUND.replace("{goes}", "less(first[half], value)"),
    "upper_bound": _BOUND.replace("{goes}", "!less(value, first[half])"),
    "binary_search": "template <class I, class T, class F> {of} bool binary_search(I first, I last, const T& value, F less) {{ "
    "const I at = lower_bound(first, last, value, less); return at != last && !less(value, *at); }}\n"
    "template <class I, class T> {of} bool binary_search(I first, I last, const T& value) {{ "
    "return binary_search(first, last, value, {less}); }}",
    "min_element": _EXTREME.replace("{better}", "less(*first, *found)"),
    "max_element": _EXTREME.replace("{better}", "less(*found, *first)"),
    "sort": _SORT_ALONE,
    "stable_sort": _SORT_ALONE,
    "sort_by_key": _SORT,
    "fill": "template <class I, class T> {of} void fill(I first, I last, const T& value) {{ for (; first != last; ++first) *first = value; }}",
    "sequence": "template <class I, class T> {of} void sequence(I first, I last, T value) {{ "
    "for (; first != last; ++first) *first = value, value = value + 1; }}\n"
    "template <class I> {of} void sequence(I first, I last) {{ sequence(first, last, 0); }}",
    "copy": "template <class I, class O> {of} O copy(I first, I last, O out) {{ for (; first != last; ++first, ++out) *out = *first; return out; }}",
    "reverse": "template <class I> {of} void reverse(I first, I last) {{ "
    "while (first != last && first != --last) {{ const auto value = *first; *first = *last; *last = value; ++first; }} }}",
    "find": "template <class I, class T> {of} I find(I first, I last, const T& value) {{ "
    "while (first != last && !(*first == value)) ++first; return first; }}",
    "count": "template <class I, class T> {of} long long count(I first, I last, const T& value) {{ "
    "long long found = 0; for (; first != last; ++first) found += *first == value; return found; }}",
    "reduce": "template <class I, class T, class F> {of} T reduce(I first, I last, T sum, F add) {{ "
    "for (; first != last; ++first) sum = add(sum, *first); return sum; }}\n"
    "template <class I, class T> {of} T reduce(I first, I last, T sum) {{ for (; first != last; ++first) sum = sum + *first; return sum; }}\n"
    "template <class I> {of} auto reduce(I first, I last) {{ auto sum = *first; sum = 0; return reduce(first, last, sum); }}",
    "for_each": "template <class I, class F> {of} I for_each(I first, I last, F f) {{ for (; first != last; ++first) f(*first); return first; }}",
    "transform": "template <class I, class O, class F> {of} O transform(I first, I last, O out, F f) {{ "
    "for (; first != last; ++first, ++out) *out = f(*first); return out; }}\n"
    "template <class I, class J, class O, class F> {of} O transform(I first, I last, J other, O out, F f) {{ "
    "for (; first != last; ++first, ++other, ++out) *out = f(*first, *other); return out; }}",
    "inclusive_scan": "template <class I, class O, class F> {of} O inclusive_scan(I first, I last, O out, F add) {{ "
    "if (first == last) return out; auto sum = *first; *out = sum; "
    "for (++first, ++out; first != last; ++first, ++out) *out = sum = add(sum, *first); return out; }}\n"
    "template <class I, class O> {of} O inclusive_scan(I first, I last, O out) {{ "
    "return inclusive_scan(first, last, out, [](const auto& a, const auto& b) {{ return a + b; }}); }}",
    "exclusive_scan": _SCAN,
}
_NEEDS = {"binary_search": "lower_bound"}
_POLICIES = ("seq", "device")
ALGORITHMS = frozenset((*_TEXTS, *_POLICIES))
# After a policy, an algorithm has the same arguments.
_WITH_POLICY = (
    "template <class P, class... A, typename P::sequential = 0> __host__ __device__ constexpr auto {name}(const P&, A... a) "
    "{{ return {name}(a...); }}"
)


def algorithm_lines(used: Collection[str]) -> list[str]:
    """Returns the lines of the namespace ``thrust`` that define the algorithms and the policies of `used`."""
    names = {*used} & _TEXTS.keys()
    names |= {_NEEDS[name] for name in names & _NEEDS.keys()}
    lines = (
        ["struct sequential_policy { typedef int sequential; };"] if names or not {*_POLICIES}.isdisjoint(used) else []
    )
    lines += [f"constexpr sequential_policy {name}{{}};" for name in _POLICIES if name in used]
    for name in sorted(names, key=lambda name: (name in _NEEDS, name)):
        lines += [_TEXTS[name].format(of=_OF, name=name, less=_LESS), _WITH_POLICY.format(name=name)]
    return lines
