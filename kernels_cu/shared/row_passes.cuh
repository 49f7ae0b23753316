// Passes over rows, for kernels that reduce over a row and then compute the row's elements. cupyops.row_reduce
// generates kernels that use them. A group of threads, or the groups of a cluster's blocks, hold a row in registers. Rows
// too long for the registers are loaded again in every pass. A group takes several rows, one after the other.
//
// Macro          values   meaning                                                   set by
// STREAM         0, 1     1: a row does not fit the registers of a group            the row program's config
// PREFETCH       0, 1     1: a group loads its next row while it computes a row     the row program's config
// COLUMNS_HELD   0, 1     1: the arrays (N) are loaded once, before the rows        the row program's config
// SUMS_SHARED    0 or     elements of a column sum that a block has in shared       the row program's config
//                more     memory, with STREAM; 0: none
// ROW_SHARED     0 or     elements of each array's row that a block has in shared   the row program's config
//                more     memory, with STREAM: bulk copies bring the row, and
//                         every pass reads it there (sm_90 and later); 0: none
// SPREAD         1 or    above 1: for few rows. A block has one row, and this many    the row program's config
//                more    threads take the accesses of one thread of the config for
//                        many rows. The row gets the same bits.
// FEW            0, 1    1: for few rows. No block takes a second row, so no value is   the row program's config
//                        computed ahead for all rows: a thread that widens its
//                        columns before the rows would wait for them first
// UNIT: see folds.cuh. The others: see rows.cuh.
#pragma once

#ifndef COLUMNS_HELD
#define COLUMNS_HELD 0
#endif
#ifndef SUMS_SHARED
#define SUMS_SHARED 0
#endif
#ifndef ROW_SHARED
#define ROW_SHARED 0
#endif
#ifndef STAGES
#define STAGES 0
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

#include "exchange.cuh"
#include "folds.cuh"
#include "registers.cuh"
#include "scalar.cuh"
#include "rows.cuh"
#include "row_copies.cuh"

// Returns whether accesses of up to 16 bytes can load and store VECTOR_WIDTH elements at every access to an array.
template <typename T> __device__ __forceinline__ bool whole_accesses(const T* p) {
    constexpr unsigned BYTES = VECTOR_WIDTH * sizeof(T) < 16 ? VECTOR_WIDTH * sizeof(T) : 16;
    return reinterpret_cast<unsigned long long>(p) % BYTES == 0;
}

// The elements of one array's row that a thread holds.
template <typename T> struct Held {
    Packed<T> of[VECTORS];

    template <typename At, typename Vectors>
    __device__ __forceinline__ void load(const T* row, const At& at, Vectors vectors) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (at.has(v)) of[v] = load_packed(row + at.of(v), vectors);
    }

    // Loads from shared memory, where a block's slices of the row lie one after the other.
    __device__ __forceinline__ void load_shared(const T* slices, const Columns& at) {
        const T* slice = slices + at.start / (CLUSTER * SLICE) * SLICE;
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (at.has(v)) of[v] = load_packed(slice + place_of(v), true);
    }

    // Begins a pass over registers. The compiler would keep the widened elements of the pass before, which take twice the
    // registers of 16-bit elements, and would spill them.
    __device__ __forceinline__ void begin_pass() {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
#pragma unroll
            for (int i = 0; i < Packed<T>::WORDS; ++i) opaque(of[v].word[i]);
    }
};

// Loads a slice of a row into registers: from shared memory, at `offset` bytes, if copies have brought the row there.
template <typename T>
__device__ __forceinline__ void load_slice(Held<T>& held, const T* row, unsigned, const Columns& at, bool vectors) {
    held.load(row, at, vectors);
}

template <typename T>
__device__ __forceinline__ void load_slice(Held<T>& held, const T* row, unsigned offset, const Columns& at, Always vectors) {
    if constexpr (ROW_SHARED > 0) held.load_shared(reinterpret_cast<const T*>(rows_memory + offset), at);
    else held.load(row, at, vectors);
}

// An array (N). With COLUMNS_HELD a thread keeps its columns in registers, for all rows; else it loads them at each use.
template <typename T> struct ColumnValues {
    const T* columns;
    Packed<T> held[COLUMNS_HELD ? VECTORS : 1];

    template <typename Vectors>
    __device__ __forceinline__ ColumnValues(const T* columns, long long n, Vectors vectors) : columns(columns) {
        const Columns at = columns_of_block(n);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (COLUMNS_HELD && at.has(v)) held[COLUMNS_HELD ? v : 0] = load_packed(columns + at.of(v), vectors);
    }

    // The thread's v-th access, which begins at `column`.
    template <typename Vectors> __device__ __forceinline__ Packed<T> take(int v, int column, Vectors vectors) const {
        if (COLUMNS_HELD) return held[COLUMNS_HELD ? v : 0];
        return load_packed(columns + column, vectors);
    }
};

// Calls f(v, column) for each of this thread's accesses to a row of n elements; the v-th access begins at `column`. Calls
// `ended` after the accesses of each turn, and `loaded` after the first loads of the row.
template <typename Load, typename F, typename Ended, typename Loaded>
__device__ __forceinline__ void pass(long long n, const Load& load, const F& f, const Ended& ended, const Loaded& loaded) {
    bool first = true;
    for (Columns at = columns_of_block(n);; at.start += CLUSTER * SLICE) {
        // The compiler would step the address and the column of each access, in registers of their own, and would spill some.
        if (STREAM && ROW_SHARED == 0 && CLUSTER > 1 && !FULL) opaque(at.start);
        if (STREAM && at.start >= at.n) break;
        // No row is empty. The branch keeps the compiler from placing what waits for earlier loads before the row's loads.
        if (FEW && !STREAM && at.n <= 0) return;
        const auto turn = [&](const auto& columns) {
            if (STREAM) load(columns);
            if (first) loaded();
            first = false;
#pragma unroll
            for (int v = 0; v < VECTORS; ++v)
                if (columns.has(v)) f(v, columns.of(v));
        };
        // Of a row in a tile, all turns but the last take a copy of the code without bounds checks.
        if (STREAM && STAGES > 0 && at.start + SLICE <= at.n) turn(WholeColumns(at));
        else turn(at);
        ended();
        if (!STREAM) break;
    }
    if (first) loaded();
}

template <typename Load, typename F> __device__ __forceinline__ void pass(long long n, const Load& load, const F& f) {
    pass(n, load, f, [] {}, [] {});
}

template <typename T, typename Vectors>
__device__ __forceinline__ void store_vector(T* to, const acc_t (&values)[VECTOR_WIDTH], Vectors vectors) {
    Packed<T> packed;
    packed.set(values);
    store_packed(to, packed, vectors);
}

// Returns the value that an element of type scalar_t holds after v is stored: v rounded to nearest even.
__device__ __forceinline__ acc_t rounded_to_scalar(acc_t v) { return convert<acc_t>(convert<scalar_t>(v)); }

// Converts an index to int, the type of column numbers. An index outside the range of int stays outside the range of
// columns.
__device__ __forceinline__ int whole_number(long long i) {
    const int low = static_cast<int>(i);
    return low == i ? max(low, -2147483647) : i < 0 ? -2147483647 : 2147483647;
}

// Returns the element `column` of a row of n elements, or 0 if the row has no such column.
template <typename T> __device__ __forceinline__ acc_t element_at(const T* row, int column, long long n) {
    return static_cast<unsigned>(column) < static_cast<unsigned>(n) ? convert<acc_t>(row[column]) : acc_t(0);
}

// What a warp publishes to the other warps on its row: up to MOST values.
template <int MOST> struct Parts {
    alignas(8) acc_t of[MOST + MOST % 2];
};

// Two tables: a thread may still read one when another thread is one reduction, and so one barrier, ahead.
template <int MOST> using PartsExchange = Exchange<Parts<MOST>, 2>;

// The threads on a row, which reduce up to MOST values of the row at once. All threads of the block call reduce() together,
// after cluster_wait(). Every thread of a row gets the same bits, and the macros alone decide the order of a sum.
template <int MOST> struct Team {
    PartsExchange<MOST>& exchange;
    unsigned turn = 0, spread_turn = 0, most_turn = 0;

    __device__ __forceinline__ explicit Team(PartsExchange<MOST>& exchange) : exchange(exchange) {}

    template <Fold... FOLDS> __device__ __forceinline__ void reduce(Folded<FOLDS...>& folded) {
        if constexpr (UNITS_AT_ONCE) end_units(folded);
        if constexpr (SPREAD > 1) join_spread(folded);
        reduce<FOLDS...>(folded.total[0]);
    }

    template <Fold... FOLDS> __device__ __forceinline__ void reduce(acc_t (&v)[sizeof...(FOLDS)]) {
        fold_lanes<(OWNERS < 32 ? OWNERS : 32), FOLDS...>(v);
        if constexpr (PARTS > 1) {
            constexpr int COUNT = sizeof...(FOLDS);
            Parts<MOST> known = {};
#pragma unroll
            for (int i = 0; i < COUNT; ++i) known.of[i] = v[i];
            const Parts<MOST>* parts = exchange.all_gather(known, turn++);
            const acc_t none[COUNT] = {nothing<FOLDS>()...};
            if constexpr (FEW && CLUSTER == 1 && PARTS <= 16) {
                acc_t all[READERS][COUNT];
#pragma unroll
                for (int p = 0; p < READERS; ++p)
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) all[p][i] = p < PARTS ? parts[p < PARTS ? p : 0].of[i] : none[i];
                fold_readers<FOLDS...>(v, all);
            } else {
                constexpr Fold folds[COUNT] = {FOLDS...};
                acc_t read[EACH_READS][COUNT];
#pragma unroll
                for (int p = 0; p < EACH_READS; ++p)
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) read[p][i] = part_read(p) < PARTS ? parts[part_read(p)].of[i] : none[i];
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    v[i] = folds[i] == Fold::Exps ? acc_t(0) : read[0][i];
#pragma unroll
                    for (int p = 1; p < EACH_READS; ++p) {
                        if (folds[i] == Fold::Max) v[i] = larger(v[i], read[p][i]);
                        if (folds[i] == Fold::Min) v[i] = smaller(v[i], read[p][i]);
                        if (folds[i] == Fold::Sum) v[i] += read[p][i];
                    }
                }
#pragma unroll
                for (int i = 1; i < COUNT; ++i)
#pragma unroll
                    for (int p = 0; p < EACH_READS; ++p)
                        if (folds[i] == Fold::Exps) v[i] += read[p][i] * exponential(read[p][i - 1] - origin_of(v[i - 1]));
                fold_lanes<READERS, FOLDS...>(v);
            }
        }
    }

    // Ends the units of the threads that share the accesses of one thread of the config for many rows.
    template <Fold... FOLDS> __device__ __forceinline__ void end_units(Folded<FOLDS...>& folded) {
        constexpr int COUNT = sizeof...(FOLDS);
        constexpr Fold folds[COUNT] = {FOLDS...};
        acc_t most[COUNT] = {};
#pragma unroll
        for (int i = 1; i < COUNT; ++i)
            if (folds[i] == Fold::Exps) most[i] = folded.most_of_units(i);
        if constexpr (SPREAD > 1 && ((FOLDS == Fold::Exps) || ...)) {
            // Two tables, as in PartsExchange.
            __shared__ acc_t parts[2][COUNT][SPREAD][OWNERS];
            const int owner = static_cast<int>(threadIdx.x) % OWNERS, part = static_cast<int>(threadIdx.x) / OWNERS;
            auto& of = parts[most_turn++ % 2];
#pragma unroll
            for (int i = 1; i < COUNT; ++i)
                if (folds[i] == Fold::Exps) of[i][part][owner] = most[i];
            __syncthreads();
#pragma unroll
            for (int i = 1; i < COUNT; ++i)
                if (folds[i] == Fold::Exps)
#pragma unroll
                    for (int p = 0; p < SPREAD; ++p) most[i] = larger(most[i], of[i][p][owner]);
        }
        folded.end_units(most);
    }

    // Gives every thread the values of one thread of the config for many rows: those of its units, joined in their order.
    template <Fold... FOLDS> __device__ __forceinline__ void join_spread(Folded<FOLDS...>& folded) {
        constexpr int COUNT = sizeof...(FOLDS), OWN = OWN_UNITS, UNITS = OWN * SPREAD;
        // Two tables, as in PartsExchange.
        __shared__ acc_t units[2][COUNT][UNITS][OWNERS];
        const int owner = static_cast<int>(threadIdx.x) % OWNERS, part = static_cast<int>(threadIdx.x) / OWNERS;
        auto& of = units[spread_turn++ % 2];
#pragma unroll
        for (int v = 0; v < OWN; ++v)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) of[i][v * SPREAD + part][owner] = folded.total[v][i];
        __syncthreads();
        acc_t read[UNITS][COUNT];
#pragma unroll
        for (int v = 0; v < UNITS; ++v)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) read[v][i] = of[i][v][owner];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) folded.total[0][i] = read[0][i];
#pragma unroll
        for (int v = 1; v < UNITS; ++v) join<FOLDS...>(folded.total[0], read[v]);
    }
};

// Returns the row of this thread's group, of the GROUPS rows from `first` on; the last row for groups beyond the end.
__device__ __forceinline__ long long row_of_group(long long first, long long rows) {
    if (ROW_EACH) return first;
    return first + group_of_block() < rows ? first + group_of_block() : rows - 1;
}

// Returns n, the length of a row. The config for few rows knows it if the row fills all accesses: no thread waits for a
// parameter, and the conversion and the division by N end before the row's loads do.
__device__ __forceinline__ long long length_of_row(long long n) {
    return FEW && FULL && !STREAM ? static_cast<long long>(CLUSTER) * SLICE : n;
}

// Returns whether this thread stores the results of its row.
__device__ __forceinline__ bool first_of_row() { return threadIdx.x % ROW_THREADS == 0 && block_of_cluster() == 0; }

// Sums of each column over the rows that a block, or a cluster, takes: one row of `partial`, (parts, N). The sums accumulate in
// registers. With STREAM they accumulate in shared memory, or in `partial`, which then must be zero before the launch.
struct ColumnSums {
    acc_t held[STREAM ? 1 : VECTORS][VECTOR_WIDTH];
    acc_t* part;
    acc_t* shared;  // this thread's sums, ROW_THREADS apart, so that the threads of a warp access neighbouring words

    // `index` counts the kernel's sums.
    __device__ __forceinline__ ColumnSums(acc_t* partial, long long n, int index)
        : part(partial ? partial + blockIdx.x / CLUSTER * n : nullptr),
          shared(reinterpret_cast<acc_t*>(rows_memory) + index * SUMS_SHARED + threadIdx.x) {
#pragma unroll
        for (int v = 0; v < (STREAM ? 1 : VECTORS); ++v)
#pragma unroll
            for (int k = 0; k < VECTOR_WIDTH; ++k) held[v][k] = 0;
        for (int i = 0; i < SUMS_SHARED / ROW_THREADS; ++i) shared[i * ROW_THREADS] = 0;
    }

    // The place in `shared` of the k-th element of the v-th access, which begins at `column`.
    static __device__ __forceinline__ int place(int v, int k, int column) {
        return ((column / (CLUSTER * SLICE) * VECTORS + v) * VECTOR_WIDTH + k) * ROW_THREADS;
    }

    __device__ __forceinline__ void add(int v, int k, int column, acc_t value) {
        if (!STREAM) held[STREAM ? 0 : v][k] += value;
        else if (SUMS_SHARED) shared[place(v, k, column)] += value;
        else if (part) part[column + k] += value;
    }

    // Adds up the groups of the block, in their order, and stores the sums. All threads of the block call it.
    __device__ __forceinline__ void store(long long n) {
        if (STREAM && SUMS_SHARED && part)
            for (Columns at = columns_of_block(n); at.start < at.n; at.start += CLUSTER * SLICE)
#pragma unroll
                for (int v = 0; v < VECTORS; ++v)
                    if (at.has(v))
#pragma unroll
                        for (int k = 0; k < VECTOR_WIDTH; ++k) part[at.of(v) + k] = shared[place(v, k, at.of(v))];
        if (STREAM) return;
        __shared__ acc_t total[GROUPS > 1 ? SLICE : 1];
        const Columns at = columns_of_block(n);
        for (int group = 0; group < GROUPS; ++group) {
            if (group_of_block() == group)
#pragma unroll
                for (int v = 0; v < VECTORS; ++v)
#pragma unroll
                    for (int k = 0; k < VECTOR_WIDTH; ++k) {
                        acc_t& own = held[STREAM ? 0 : v][k];
                        if constexpr (GROUPS > 1) {
                            acc_t& sum = total[place_of(v) + k];
                            sum = own += group ? sum : acc_t(0);
                        }
                        if (group == GROUPS - 1 && part && at.has(v)) part[at.of(v) + k] = own;
                    }
            if (GROUPS > 1) __syncthreads();
        }
    }
};
