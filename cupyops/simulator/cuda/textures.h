// Textures and surfaces: an object is the address of a CupyopsTexture, which cupyops/simulator/textures.py makes. The
// translation includes this header if the text names one of its functions or types.
//
// Coordinates and filters follow the section "Texture Fetching" of CUDA's programming guide. The guide leaves open how a
// linear filter rounds. sample(), shares_of() and filtered() round as an H200 was measured to round; filtered() differs from it
// by up to 1/32767 for normalized integers of 8 bits with a sign.
#pragma once

typedef unsigned long long cudaTextureObject_t;
typedef unsigned long long cudaSurfaceObject_t;
enum cudaSurfaceBoundaryMode { cudaBoundaryModeZero, cudaBoundaryModeClamp, cudaBoundaryModeTrap };

// The layout is that of the ctypes.Structure in textures.py.
struct CupyopsTexture {
    char* data;
    int size[3];  // width, height and depth
    int dimensions, layers, faces, channels, format;
    int address[3];
    int linear, normalized, scaled;
    float border[4];
};

namespace cupyops_texture {

enum { FLOAT32, FLOAT16, INT8, UINT8, INT16, UINT16, INT32, UINT32 };
enum { WRAP, CLAMP, MIRROR, BORDER };
struct Texel {
    double at[4];
};

// The types that a fetch returns: the type of a channel, and the number of channels.
template <typename T> struct Channels;
#define CUPYOPS_CHANNELS(B, NAME)                                                                                  \
    template <> struct Channels<NAME##1> { typedef B type; enum { count = 1 }; };                                  \
    template <> struct Channels<NAME##2> { typedef B type; enum { count = 2 }; };                                  \
    template <> struct Channels<NAME##4> { typedef B type; enum { count = 4 }; };
#define CUPYOPS_CHANNEL(B) template <> struct Channels<B> { typedef B type; enum { count = 1 }; };
CUPYOPS_CHANNELS(signed char, char)
CUPYOPS_CHANNELS(unsigned char, uchar)
CUPYOPS_CHANNELS(short, short)
CUPYOPS_CHANNELS(unsigned short, ushort)
CUPYOPS_CHANNELS(int, int)
CUPYOPS_CHANNELS(unsigned, uint)
CUPYOPS_CHANNELS(float, float)
CUPYOPS_CHANNEL(char)
CUPYOPS_CHANNEL(signed char)
CUPYOPS_CHANNEL(unsigned char)
CUPYOPS_CHANNEL(short)
CUPYOPS_CHANNEL(unsigned short)
CUPYOPS_CHANNEL(int)
CUPYOPS_CHANNEL(unsigned)
CUPYOPS_CHANNEL(float)
#undef CUPYOPS_CHANNEL
#undef CUPYOPS_CHANNELS

inline int bytes_of(int format) { return format == FLOAT32 || format >= INT32 ? 4 : format == INT8 || format == UINT8 ? 1 : 2; }

// An IEEE binary16 number.
inline double half_of(unsigned short bits) {
    const int e = bits >> 10 & 31, m = bits & 1023;
    const double magnitude = e == 31 ? (m ? __builtin_nan("") : INFINITY) : ldexp(double(e ? m | 1024 : m), (e ? e : 1) - 25);
    return bits >> 15 ? -magnitude : magnitude;
}

template <typename I> CUPYOPS_UNCHECKED double number_at(const char* p) {
    I value;
    __builtin_memcpy(&value, p, sizeof value);
    return double(value);
}

CUPYOPS_UNCHECKED double scaled(const CupyopsTexture& t, double x, double top) { return t.scaled ? fmax(x / top, -1.0) : x; }

// A channel of a texel. Integers that are read as normalized floats have the range [0, 1] or [-1, 1].
CUPYOPS_UNCHECKED double channel(const CupyopsTexture& t, const char* p) {
    switch (t.format) {
        case FLOAT32: return number_at<float>(p);
        case FLOAT16: {
            unsigned short bits;
            __builtin_memcpy(&bits, p, sizeof bits);
            return half_of(bits);
        }
        case INT8: return scaled(t, number_at<signed char>(p), 127.0);
        case UINT8: return scaled(t, number_at<unsigned char>(p), 255.0);
        case INT16: return scaled(t, number_at<short>(p), 32767.0);
        case UINT16: return scaled(t, number_at<unsigned short>(p), 65535.0);
        case INT32: return number_at<int>(p);
        default: return number_at<unsigned>(p);
    }
}

// The texel at three positions, after the address modes.
CUPYOPS_UNCHECKED Texel texel(const CupyopsTexture& t, const int (&position)[3], int slice) {
    int at[3] = {0, 0, 0};
    bool outside = false;
    for (int d = 0; d < t.dimensions; ++d) {
        const int n = t.size[d], i = position[d], mode = t.address[d];
        if (mode == BORDER) outside |= i < 0 || i >= n;
        if (t.normalized && mode == WRAP) {
            at[d] = (i % n + n) % n;
        } else if (t.normalized && mode == MIRROR) {
            const int m = (i % (2 * n) + 2 * n) % (2 * n);
            at[d] = m < n ? m : 2 * n - 1 - m;
        } else {
            at[d] = i < 0 ? 0 : i >= n ? n - 1 : i;
        }
    }
    Texel result = {{0, 0, 0, 0}};
    if (outside) {
        for (int c = 0; c < t.channels; ++c) result.at[c] = t.border[c];
        return result;
    }
    const int each = bytes_of(t.format);
    const size_t number = ((size_t(slice) * t.size[2] + at[2]) * t.size[1] + at[1]) * t.size[0] + at[0];
    for (int c = 0; c < t.channels; ++c) result.at[c] = channel(t, t.data + (number * t.channels + c) * each);
    return result;
}

inline int whole(double x) { return x != x ? 0 : x > 1e9 ? 1000000000 : x < -1e9 ? -1000000000 : int(floor(x)); }

// The shares of 256 of a linear filter's corners. Bit d of a corner's number is 1 for the upper texel in dimension d, and
// `weights` are the fractions of the coordinates, of 256. The third coordinate divides 256 into two parts, the first
// coordinate divides each part, and the second coordinate divides these. If there are two parts, the first is rounded,
// and the second is what remains.
inline void shares_of(const int (&weights)[3], int (&shares)[8]) {
    auto part = [](int of, int weight) { return (of * weight + 128) >> 8; };
    for (int z = 0; z < 2; ++z) {
        const int slice = z ? weights[2] : 256 - weights[2];
        const int right = part(slice, weights[0]), left = slice - right;
        int* share = shares + 4 * z;
        share[3] = part(right, weights[1]), share[1] = right - share[3];
        share[0] = part(left, 256 - weights[1]), share[2] = left - share[0];
    }
}

// A channel that a linear filter weighed. The result of normalized integers of 8 and 16 bits has 16 bits. The values are
// multiples of 1/1024 of its last bit, so that their sum is exact.
CUPYOPS_UNCHECKED double filtered(const CupyopsTexture& t, const double (&values)[8], const int (&shares)[8]) {
    const double top = !t.scaled ? 0.0 : t.format == UINT8 || t.format == UINT16 ? 65535.0 : 32767.0;
    double sum = 0.0;
    for (int corner = 0; corner < 1 << t.dimensions; ++corner)
        if (shares[corner]) sum += shares[corner] / 256.0 * (t.scaled ? rint(values[corner] * top * 1024.0) / 1024.0 : values[corner]);
    return t.scaled ? floor(sum + 0.5) / top : sum;
}

CUPYOPS_UNCHECKED Texel sample(const CupyopsTexture& t, const float (&coordinate)[3], int slice) {
    int first[3] = {0, 0, 0}, weights[3] = {0, 0, 0};
    for (int d = 0; d < t.dimensions; ++d) {
        double x = t.normalized ? double(coordinate[d] * float(t.size[d])) : double(coordinate[d]);
        if (t.linear) {
            const bool repeats = t.normalized && (t.address[d] == WRAP || t.address[d] == MIRROR);
            if (!repeats && t.address[d] != BORDER) x = fmin(fmax(x, 0.5), t.size[d] - 0.5);
            x = floor((x - 0.5) * 256.0 + 0.5) / 256.0;
            first[d] = whole(x);
            if (fabs(x) < 1e9) weights[d] = int((x - first[d]) * 256.0);
        } else {
            first[d] = whole(x);
        }
    }
    if (!t.linear) return texel(t, first, slice);
    int shares[8];
    shares_of(weights, shares);
    double values[4][8] = {};
    for (int corner = 0; corner < 1 << t.dimensions; ++corner) {
        if (!shares[corner]) continue;
        const int at[3] = {first[0] + (corner & 1), first[1] + (corner >> 1 & 1), first[2] + (corner >> 2)};
        const Texel one = texel(t, at, slice);
        for (int c = 0; c < t.channels; ++c) values[c][corner] = one.at[c];
    }
    Texel sum = {{0, 0, 0, 0}};
    for (int c = 0; c < t.channels; ++c) sum.at[c] = filtered(t, values[c], shares);
    return sum;
}

CUPYOPS_UNCHECKED const CupyopsTexture& described(unsigned long long object, int dimensions, bool layered, bool cube) {
    if (!object) cupyops_misuse("a texture or surface object is 0");
    const CupyopsTexture& t = *reinterpret_cast<const CupyopsTexture*>(object);
    if (t.dimensions != dimensions || (t.layers > 0) != layered || (t.faces > 1) != cube)
        cupyops_misuse("a texture or surface function is of another kind or of other dimensions than the object");
    return t;
}

template <typename T> CUPYOPS_UNCHECKED T converted(const CupyopsTexture& t, const double (&values)[4]) {
    typedef typename Channels<T>::type base;
    constexpr bool whole = base(0.5) == base(0);
    if (int(Channels<T>::count) > t.channels) cupyops_misuse("a fetch returns more channels than the texture has");
    if (whole != (t.format >= INT8 && !t.scaled)) cupyops_misuse("a fetch returns floats of a texture of integers, or integers of one of floats");
    base parts[Channels<T>::count];
    for (int c = 0; c < int(Channels<T>::count); ++c) parts[c] = whole ? base((long long)(values[c])) : base(values[c]);
    T result;
    __builtin_memcpy(static_cast<void*>(&result), parts, sizeof parts);
    return result;
}

// The face of a cubemap in the direction of a vector, and the normalized coordinates within the face.
inline int face_of(float x, float y, float z, float (&at)[3]) {
    const float ax = fabsf(x), ay = fabsf(y), az = fabsf(z);
    int face;
    float s, u, m;
    if (ax >= ay && ax >= az) face = x < 0, m = ax, s = x < 0 ? z : -z, u = -y;
    else if (ay >= az) face = 2 + (y < 0), m = ay, s = x, u = y < 0 ? -z : z;
    else face = 4 + (z < 0), m = az, s = z < 0 ? -x : x, u = -y;
    at[0] = (s / m + 1.0f) / 2.0f, at[1] = (u / m + 1.0f) / 2.0f, at[2] = 0;
    return face;
}
CUPYOPS_UNCHECKED int layer_of(const CupyopsTexture& t, int layer) { return layer < 0 ? 0 : layer >= t.layers ? t.layers - 1 : layer; }

template <typename T> CUPYOPS_UNCHECKED T fetch(unsigned long long object, int dimensions, bool layered, float x, float y, float z, int layer) {
    const CupyopsTexture& t = described(object, dimensions, layered, false);
    return converted<T>(t, sample(t, {x, y, z}, layered ? layer_of(t, layer) : 0).at);
}
template <typename T> CUPYOPS_UNCHECKED T fetch_cube(unsigned long long object, bool layered, float x, float y, float z, int layer) {
    const CupyopsTexture& t = described(object, 2, layered, true);
    float at[3];
    const int face = face_of(x, y, z, at);
    CupyopsTexture of_face = t;
    of_face.normalized = 1, of_face.address[0] = of_face.address[1] = CLAMP;
    return converted<T>(of_face, sample(of_face, at, (layered ? layer_of(t, layer) * 6 : 0) + face).at);
}
// Returns texel x of a texture of linear memory, and 0 beyond its ends.
template <typename T> CUPYOPS_UNCHECKED T fetch_number(unsigned long long object, int x) {
    const CupyopsTexture& t = described(object, 1, false, false);
    if (x < 0 || x >= t.size[0]) return converted<T>(t, {0, 0, 0, 0});
    return converted<T>(t, texel(t, {x, 0, 0}, 0).at);
}
// One channel of the four texels that a linear filter weighs.
template <typename T> CUPYOPS_UNCHECKED T gathered(unsigned long long object, float x, float y, int component) {
    const CupyopsTexture& t = described(object, 2, false, false);
    if (component < 0 || component >= t.channels) cupyops_misuse("a fetch returns more channels than the texture has");
    const int i = whole((t.normalized ? double(x * float(t.size[0])) : double(x)) - 0.5);
    const int j = whole((t.normalized ? double(y * float(t.size[1])) : double(y)) - 0.5);
    CupyopsTexture four = t;
    four.channels = 4;
    return converted<T>(four, {texel(t, {i, j + 1, 0}, 0).at[component], texel(t, {i + 1, j + 1, 0}, 0).at[component],
                               texel(t, {i + 1, j, 0}, 0).at[component], texel(t, {i, j, 0}, 0).at[component]});
}

// The bytes of a surface at x bytes in a row, or null where an access has no effect.
CUPYOPS_UNCHECKED char* surface_at(const CupyopsTexture& t, int bytes, int x, int y, int z, int slice, cudaSurfaceBoundaryMode mode) {
    const int slices = (t.layers ? t.layers : 1) * t.faces, row = t.size[0] * t.channels * bytes_of(t.format);
    int at[4] = {x, y, z, slice};
    const int most[4] = {row - bytes, t.size[1] - 1, t.size[2] - 1, slices - 1};
    for (int d = 0; d < 4; ++d) {
        if (at[d] >= 0 && at[d] <= most[d]) continue;
        if (mode == cudaBoundaryModeTrap) cupyops_misuse("an access outside a surface; x counts bytes");
        if (mode == cudaBoundaryModeZero) return nullptr;
        at[d] = at[d] < 0 ? 0 : most[d];
    }
    if (at[0] % bytes) cupyops_misuse("an access of a surface whose x, in bytes, is not a multiple of the size of the type");
    return t.data + ((size_t(at[3]) * t.size[2] + at[2]) * t.size[1] + at[1]) * row + at[0];
}
template <typename T>
CUPYOPS_UNCHECKED T surface_read(unsigned long long object, int dimensions, bool layered, bool cube, int x, int y, int z, int slice, cudaSurfaceBoundaryMode mode) {
    const char* const from = surface_at(described(object, dimensions, layered, cube), sizeof(T), x, y, z, slice, mode);
    T value = {};
    if (from) __builtin_memcpy(static_cast<void*>(&value), from, sizeof(T));
    return value;
}
template <typename T>
CUPYOPS_UNCHECKED void surface_write(T value, unsigned long long object, int dimensions, bool layered, bool cube, int x, int y, int z, int slice, cudaSurfaceBoundaryMode mode) {
    char* const to = surface_at(described(object, dimensions, layered, cube), sizeof(T), x, y, z, slice, mode);
    if (to) __builtin_memcpy(to, &value, sizeof(T));
}

}  // namespace cupyops_texture

// Each fetch returns its value, or writes it through a pointer. A texture has one level, so that the level of detail does not
// matter.
#define CUPYOPS_FETCH(NAME, CALL, ...)                                                                                 \
    template <typename T> CUPYOPS_UNCHECKED T NAME(cudaTextureObject_t object, __VA_ARGS__) { return cupyops_texture::CALL; }     \
    template <typename T> CUPYOPS_UNCHECKED void NAME(T* to, cudaTextureObject_t object, __VA_ARGS__) { *to = cupyops_texture::CALL; }
#define CUPYOPS_FETCHES(NAME, GRADIENT, CALL, ...)                                  \
    CUPYOPS_FETCH(NAME, CALL, __VA_ARGS__)                                          \
    CUPYOPS_FETCH(NAME##Lod, CALL, __VA_ARGS__, float)                              \
    CUPYOPS_FETCH(NAME##Grad, CALL, __VA_ARGS__, GRADIENT, GRADIENT)
CUPYOPS_FETCH(tex1Dfetch, fetch_number<T>(object, x), int x)
CUPYOPS_FETCHES(tex1D, float, fetch<T>(object, 1, false, x, 0, 0, 0), float x)
CUPYOPS_FETCHES(tex2D, float2, fetch<T>(object, 2, false, x, y, 0, 0), float x, float y)
CUPYOPS_FETCHES(tex3D, float4, fetch<T>(object, 3, false, x, y, z, 0), float x, float y, float z)
CUPYOPS_FETCHES(tex1DLayered, float, fetch<T>(object, 1, true, x, 0, 0, layer), float x, int layer)
CUPYOPS_FETCHES(tex2DLayered, float2, fetch<T>(object, 2, true, x, y, 0, layer), float x, float y, int layer)
CUPYOPS_FETCHES(texCubemap, float4, fetch_cube<T>(object, false, x, y, z, 0), float x, float y, float z)
CUPYOPS_FETCHES(texCubemapLayered, float4, fetch_cube<T>(object, true, x, y, z, layer), float x, float y, float z, int layer)
CUPYOPS_FETCH(tex2Dgather, gathered<T>(object, x, y, component), float x, float y, int component = 0)
#undef CUPYOPS_FETCHES
#undef CUPYOPS_FETCH

// x counts bytes.
#define CUPYOPS_SURFACE(NAME, D, LAYERED, CUBE, Y, Z, SLICE, ...)                                                                    \
    template <typename T> CUPYOPS_UNCHECKED T NAME##read(cudaSurfaceObject_t object, __VA_ARGS__, cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) { \
        return cupyops_texture::surface_read<T>(object, D, LAYERED, CUBE, x, Y, Z, SLICE, mode);                                     \
    }                                                                                                                                \
    template <typename T> CUPYOPS_UNCHECKED void NAME##read(T* to, cudaSurfaceObject_t object, __VA_ARGS__, cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) { \
        *to = cupyops_texture::surface_read<T>(object, D, LAYERED, CUBE, x, Y, Z, SLICE, mode);                                      \
    }                                                                                                                                \
    template <typename T> CUPYOPS_UNCHECKED void NAME##write(T value, cudaSurfaceObject_t object, __VA_ARGS__, cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) { \
        cupyops_texture::surface_write<T>(value, object, D, LAYERED, CUBE, x, Y, Z, SLICE, mode);                                    \
    }
CUPYOPS_SURFACE(surf1D, 1, false, false, 0, 0, 0, int x)
CUPYOPS_SURFACE(surf2D, 2, false, false, y, 0, 0, int x, int y)
CUPYOPS_SURFACE(surf3D, 3, false, false, y, z, 0, int x, int y, int z)
CUPYOPS_SURFACE(surf1DLayered, 1, true, false, 0, 0, layer, int x, int layer)
CUPYOPS_SURFACE(surf2DLayered, 2, true, false, y, 0, layer, int x, int y, int layer)
CUPYOPS_SURFACE(surfCubemap, 2, false, true, y, 0, face, int x, int y, int face)
CUPYOPS_SURFACE(surfCubemapLayered, 2, true, true, y, 0, layer_face, int x, int y, int layer_face)
#undef CUPYOPS_SURFACE
