#include <algorithm>
#include <array>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>
#include <cstring>
#include <cstdlib>

#define SQUARE(x) ((x) * (x))
#define RAW_TWICE(x) x * 2
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
#define JOIN(a, b) a##b
#define NAME(x) #x
#define LOOP_SUM(var, lo, hi) for (int i_ = (lo); i_ < (hi); ++i_) { var += i_; }
constexpr int kBase = 32;
constexpr int kDouble = kBase * 2;
const double kScale = kDouble / 5;
constexpr int64_t kBig = int64_t(1) << 40;
static const int kTable[4] = {3, 1, 4, 1};
enum class Mode : int { Off, On = 5, Auto };
enum Color { RED = 1, GREEN, BLUE = 10 };
enum class Tiny : uint8_t { A = 250, B };
namespace outer { constexpr int v = 3; int twice(int x) { return 2 * x; } namespace inner { int thrice(int x) { return 3 * x + v; } } }
namespace alias_ns = outer::inner;
namespace { int hidden(int x) { return x - 100; } }
struct Point { int x; int y; };
struct Vec2 { float x = 1.5f, y = 2.5f; Vec2() {} Vec2(float a, float b) : x(a), y(b) {} float dot(const Vec2& o) const { return x * o.x + y * o.y; }
  Vec2 operator+(const Vec2& o) const { return Vec2(x + o.x, y + o.y); } Vec2& operator+=(const Vec2& o) { x += o.x; y += o.y; return *this; }
  Vec2 operator-() const { return {-x, -y}; } bool operator==(const Vec2& o) const { return x == o.x && y == o.y; } float& operator[](int i) { return i == 0 ? x : y; }
  void scale(float s) { x *= s; y *= s; } static Vec2 unit() { return Vec2(1, 0); } };
Vec2 operator*(float s, const Vec2& v) { return Vec2(s * v.x, s * v.y); }
bool operator<(const Vec2& a, const Vec2& b) { return a.x < b.x; }
struct Counter { int count; explicit Counter(int start = 10) : count(start) {} int next() { return ++count; } int operator()(int d) { count += d; return count; } Counter& add(int d) { count += d; return *this; } };
struct Config { static constexpr int kThreads = 256; static constexpr float kEps = 1e-5f; int blocks(int n) const { return CEIL_DIV(n, kThreads); } };
struct Base { int a = 1; int get() const { return a; } }; struct Derived : Base { int b = 2; int both() const { return a * 10 + b + get(); } };
struct Nested { Point p; Vec2 v; int data[3] = {7, 8, 9}; };
template <class T> struct Box { T value; T twice() const { return value + value; } };
template <int N> struct Fixed { static constexpr int value = N * N; int arr[N] = {}; int size() const { return N; } };
template <class T> T add_one(T x) { return x + 1; }
template <class T> T half_of(T x) { return x / 2; }
template <int N> int times(int x) { return N * x; }
template <class T, int N = 3> T sum_n(T x) { T s = 0; for (int i = 0; i < N; ++i) s += x; return s; }
template <class A, class B> auto mixed_sum(A a, B b) { return a + b; }
template <bool Neg> int signed_by(int x) { if constexpr (Neg) return -x; else return x; }
template <class T> int kind_of(T) { if constexpr (std::is_floating_point_v<T>) return 1; else if constexpr (std::is_same<T, int64_t>::value) return 2; else return 3; }
template <class F> int apply_to(F f, int x) { return f(f(x)); }
template <class T> const char* type_name() { return "other"; }
template <> const char* type_name<float>() { return "float"; }
template <> const char* type_name<int>() { return "int"; }
template <class... A> int count_args(A...) { return sizeof...(A); }
template <class T> T fold_sum(T x) { return x; }
template <class T, class... R> auto fold_sum(T x, R... rest) { return x + fold_sum(rest...); }
template <class... A> double fold_all(A... a) { return (a + ...); }
int overloaded(int) { return 1; } int overloaded(double) { return 2; } int overloaded(int64_t) { return 3; } int overloaded(const std::string&) { return 4; } int overloaded(bool) { return 5; }
int with_default(int a, int b = 5, int c = kBase) { return a * 100 + b * 10 + c; }
void set_to(int& r, int v) { r = v; } void set_pointer(int* p, int v) { *p = v; } void swap_ints(int& a, int& b) { int t = a; a = b; b = t; }
void fill_array(int* p, int n) { for (int i = 0; i < n; i++) p[i] = i * i; } int sum_pointer(const int* p, int n) { int s = 0; while (n--) s += *p++; return s; }
void change_copy(std::vector<int> v) { v[0] = 99; } void change_ref(std::vector<int>& v) { v[0] = 99; v.push_back(5); } int total_of(const std::vector<int>& v) { int t = 0; for (int x : v) t += x; return t; }
void change_point(Point p) { p.x = 50; } void change_point_ref(Point& p) { p.x = 50; } void change_point_ptr(Point* p) { p->y = 60; } Point make_point(int a) { Point p; p.x = a; p.y = -a; return p; }
std::tuple<int, double, float> three(int n, double d) { return {n, d, d}; } std::pair<int, int> div_mod(int a, int b) { return {a / b, a % b}; }
std::optional<int> positive(int n) { if (n > 0) return n; return std::nullopt; }
int factorial(int n) { return n <= 1 ? 1 : n * factorial(n - 1); } int fib(int n) { int a = 0, b = 1; for (int i = 0; i < n; ++i) { int t = a + b; a = b; b = t; } return a; }
bool is_even(int n); bool is_odd(int n) { return n == 0 ? false : is_even(n - 1); } bool is_even(int n) { return n == 0 ? true : is_odd(n - 1); }
int next_power(int n) { int p = 1; while (p < n) p <<= 1; return p; }
int& pick(int& a, int& b, bool first) { return first ? a : b; }
int calls = 0; int count_call(int x) { ++calls; return x; } bool note(int& log, int bit, bool r) { log |= 1 << bit; return r; }
float area(float r) { return 3.14159265f * r * r; } int narrow(int64_t x) { return (int)x; } uint8_t to_byte(int x) { return x; } float as_float(double d) { return d; }
using Func = int (*)(int); int call_pointer(Func f, int x) { return f(x); } std::function<int(int)> make_adder(int k) { return [k](int x) { return x + k; }; }
int small(int n) { return n % 10; }
