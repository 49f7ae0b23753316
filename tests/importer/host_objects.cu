// Pointers to characters and rows, functions with variables of their own, members that are references, and destructors.
namespace n0 {
int count(const char* p) { int k = 0; while (*p) { if (*p == 'a') k++; p++; } return k; }
double object_0(int n, double d) { return count("banana") + n; }
}
using n0::object_0;
namespace n1 {
int value(const char* s) { int r = 0; while (*s) r = r * 31 + *s++; return r; }
double object_1(int n, double d) { return value("abc") % 1000; }
}
using n1::object_1;
double object_2(int n, double d) { const char* s = "hello"; const char* e = s; while (*e) ++e; return e - s; }
double object_3(int n, double d) { std::string s = "a,b,c"; int k = 0; for (const char* p = s.c_str(); *p != '\0'; ++p) k += *p == ','; return k; }
double object_4(int n, double d) { char buf[8] = "abc"; buf[1] = 'z'; std::string s = buf; return s == "azc" ? s.size() : -1; }
double object_5(int n, double d) { char buf[32]; snprintf(buf, sizeof(buf), "%d-%s", n, "x"); return std::string(buf).size(); }
namespace n6 {
int sum(const int* p, int k) { int s = 0; for (int i = 0; i < k; ++i) s += p[i]; return s; }
double object_6(int n, double d) { int a[2][3] = {{1, 2, 3}, {4, 5, 6}}; return sum(&a[0][0], 6) + sum(a[1], 3) * 100; }
}
using n6::object_6;
namespace n7 {
void fill(float* p, int k) { for (int i = 0; i < k; ++i) p[i] = i; }
double object_7(int n, double d) { float m[3][4]; fill(&m[0][0], 12); fill((float*)m, 12); fill(m[1], 4); return m[0][3] + m[1][3] * 10 + m[2][3] * 100; }
}
using n7::object_7;
double object_8(int n, double d) { int a[2][3] = {{1, 2, 3}, {4, 5, 6}}; int* p = (int*)a; int s = 0; for (int i = 0; i < 6; ++i) s = s * 10 + p[i]; return s; }
double object_9(int n, double d) { int a[2][3] = {{1, 2, 3}, {4, 5, 6}}; int (*p)[3] = a; p++; return (*p)[1] + p[0][2] * 10; }
double object_10(int n, double d) { int a[2][2][2] = {}; a[1][0][1] = 7; int* p = a[1][0]; return p[1] + *(p + 1) + sizeof(a); }
double object_11(int n, double d) { auto g = [k = 0]() mutable { return ++k; }; std::function<int()> a = g, b = g; a(); a(); return a() * 10 + b(); }
double object_12(int n, double d) { std::function<int()> a = [k = 0]() mutable { return ++k; }; auto b = a; a(); a(); return a() * 10 + b(); }
double object_13(int n, double d) { auto g = [k = n]() mutable { return ++k; }; auto h = g; g(); return g() * 100 + h(); }
namespace n14 {
template <class F> int twice(F f) { return f() + f(); }
double object_14(int n, double d) { auto g = [k = n]() mutable { return ++k; }; int a = twice(g); return a * 1000 + g(); }
}
using n14::object_14;
namespace n15 {
template <class F> int twice(F&& f) { return f() + f(); }
double object_15(int n, double d) { auto g = [k = n]() mutable { return ++k; }; int a = twice(g); return a * 1000 + g(); }
}
using n15::object_15;
namespace n16 {
int run(std::function<int(int)> h) { return h(1) + h(2); }
double object_16(int n, double d) { int acc = 0; auto g = [acc](int x) mutable { acc += x; return acc; }; int a = run(g), b = run(g); return a * 100 + b * 10 + g(5); }
}
using n16::object_16;
double object_17(int n, double d) { std::vector<std::function<int()>> v; for (int i = 0; i < 3; ++i) { int s = i; v.push_back([s]() mutable { return s++; }); } v[0](); v[0](); return v[0]() + v[1]() * 10 + v[2]() * 100; }
double object_18(int n, double d) { std::vector<int> v; auto add = [v](int x) mutable { v.push_back(x); return v.size(); }; add(1); auto other = add; add(2); return add(3) * 10 + other(1) + v.size() * 100; }
namespace n19 {
struct Ref { int& r; void set(int x) { r = x; } };
double object_19(int n, double d) { int a = 1; Ref q{a}; q.set(5); q.r += n; return a; }
}
using n19::object_19;
namespace n20 {
struct Ref { int& r; Ref(int& x) : r(x) {} int get() const { return r; } };
double object_20(int n, double d) { int a = 1; Ref q(a); a = n; int b = q.get(); q.r = 9; return a * 10 + b; }
}
using n20::object_20;
namespace n21 {
struct Ref { const int& r; Ref(const int& x) : r(x) {} };
double object_21(int n, double d) { int a = 1; Ref q(a); a = n; return q.r; }
}
using n21::object_21;
namespace n22 {
struct View { std::vector<int>& v; int sum() const { int s = 0; for (int x : v) s += x; return s; } };
double object_22(int n, double d) { std::vector<int> v{1, 2}; View w{v}; v.push_back(n); w.v[0] = 50; return w.sum() + v[0]; }
}
using n22::object_22;
namespace n23 {
struct A { double& x; std::string& s; };
double object_23(int n, double d) { double t = d; std::string s = "q"; A a{t, s}; a.x *= 2; a.s += "zz"; return t + s.size(); }
}
using n23::object_23;
namespace n24 {
int depth = 0;
struct Guard { Guard() { ++depth; } ~Guard() { --depth; } };
int inner(int n) { Guard g; if (n > 3) throw std::runtime_error("x"); return depth; }
double object_24(int n, double d) { depth = 0; int r = 0; try { Guard g; r = inner(n); } catch (const std::runtime_error& e) { r = 50; } return r * 10 + depth; }
}
using n24::object_24;
namespace n25 {
int depth = 0;
struct Guard { int old; Guard(int k) : old(depth) { depth = k; } ~Guard() { depth = old; } };
double object_25(int n, double d) { depth = 3; int s = 0; for (int i = 0; i < 4; ++i) { Guard g(i); s += depth; if (i == 1) continue; if (i == 2) break; s += 100; } return s * 10 + depth; }
}
using n25::object_25;
namespace n26 {
struct Scope { std::function<void()> fn; ~Scope() { fn(); } };
double object_26(int n, double d) { int x = 0; { Scope s{[&] { x += 7; }}; x = 1; } return x; }
}
using n26::object_26;
double object_27(int n, double d) { uint32_t h = 2166136261u; for (char c : std::string("hello")) { h ^= (uint8_t)c; h *= 16777619u; } return h; }
double object_28(int n, double d) { return __builtin_popcount(0xF0F0u) + __builtin_clz(1u) + __builtin_ctz(8); }
double object_29(int n, double d) { auto [a, b, c] = std::make_tuple(n, d, 3L); std::tie(a, b) = std::make_pair(2, 4.5); return a * 10 + b + c; }
double object_30(int n, double d) { int* p = new int[3]{1, 2, 3}; p[1] += 5; int s = p[0] + p[1]; delete[] p; return s; }
double object_31(int n, double d) { long long a = 1LL << 40; int b = a >> 38; unsigned c = -1; return b + (c >> 28) + (-8 >> 1) + ((unsigned)-8 >> 28) + (a > c) + (-1 < 1u); }
namespace n32 {
struct R { int& a; int& b; };
double object_32(int n, double d) { int x = 1, y = 2; R r{x, y}; std::swap(r.a, r.b); R q = r; q.a += 10; return x * 100 + y; }
}
using n32::object_32;
namespace n33 {
struct W { std::string& s; void add(const char* t) { s += t; } };
double object_33(int n, double d) { std::string s = "a"; W w{s}; w.add("bc"); W v = w; v.add("d"); return s.size() + w.s.size(); }
}
using n33::object_33;
namespace n34 {
struct Cnt { int& hits; explicit Cnt(int& h) : hits(h) { ++hits; } ~Cnt() { ++hits; } };
double object_34(int n, double d) { int h = 0; { Cnt c(h); h += 10; } return h; }
}
using n34::object_34;
namespace n35 {
struct Acc { double& sum; Acc(double& s) : sum(s) {} Acc& operator+=(double x) { sum += x; return *this; } };
double object_35(int n, double d) { double t = 0; Acc a(t); a += d; a += 2; auto g = [&a] { a += 1; }; g(); return t; }
}
using n35::object_35;
namespace n36 {
struct Cfg { const std::vector<int>& v; const int& k; int total() const { int s = k; for (int x : v) s += x; return s; } };
double object_36(int n, double d) { std::vector<int> v{1, 2}; int k = 5; Cfg c{v, k}; v.push_back(n); k = 7; return c.total(); }
}
using n36::object_36;
namespace n37 {
struct Cfg { const int& k; Cfg(const int& q) : k(q) {} };
double object_37(int n, double d) { Cfg c(n); n += 5; Cfg e(c.k); n += 5; return c.k + e.k * 100; }
}
using n37::object_37;
namespace n38 {
struct P { int x; }; struct Q { P& p; };
double object_38(int n, double d) { P p{1}; Q q{p}; q.p.x = 5; Q r = q; r.p.x += 1; P c = q.p; c.x = 100; return p.x; }
}
using n38::object_38;
namespace n39 {
struct Q { int& r; int* p() { return &r; } int& get() { return r; } };
double object_39(int n, double d) { int x = 1; Q q{x}; *q.p() = 4; q.get() += 3; int& z = q.r; z *= 2; auto& w = q; w.r++; return x; }
}
using n39::object_39;
namespace n40 {
struct Q { std::pair<int, int>& r; std::optional<int>& o; };
double object_40(int n, double d) { std::pair<int, int> p{1, 2}; std::optional<int> o; Q q{p, o}; q.r.first = 5; q.o = n; return p.first * 10 + p.second + o.value(); }
}
using n40::object_40;
namespace n41 {
struct Q { std::array<int, 2>& a; }; void set(Q q) { q.a[0] = 9; }
double object_41(int n, double d) { std::array<int, 2> a{1, 2}; Q q{a}; set(q); return a[0]; }
}
using n41::object_41;
namespace n42 {
int call2(const std::function<int()>& h) { return h() + h(); }
double object_42(int n, double d) { int c = n; std::function<int()> g = [c]() mutable { return c++; }; int a = call2(g); return a + g() * 100; }
}
using n42::object_42;
namespace n43 {
struct Box { std::function<int()> fn; };
double object_43(int n, double d) { int c = 0; Box a{[c]() mutable { return ++c; }}; Box b = a; a.fn(); a.fn(); std::vector<Box> v{a, b}; v[0].fn(); return a.fn() * 100 + b.fn() * 10 + v[0].fn(); }
}
using n43::object_43;
double object_44(int n, double d) { std::map<int, std::function<int()>> m; int c = 5; m[1] = [c]() mutable { return c += 2; }; auto k = m; m[1](); return m[1]() * 10 + k[1](); }
namespace n45 {
auto make(int s) { return [s, v = std::vector<int>{}](int x) mutable { v.push_back(x); s += x; return s * 10 + (int)v.size(); }; }
double object_45(int n, double d) { auto a = make(1); auto b = a; a(5); return a(1) * 1000 + b(2); }
}
using n45::object_45;
double object_46(int n, double d) { int t = 0; auto g = [&t, k = 1]() mutable { k *= 2; t += k; }; g(); auto h = g; g(); h(); return t; }
double object_47(int n, double d) { int s = 0; for (int i = 0; i < 3; ++i) { auto g = [i, c = 0]() mutable { c += i; return c; }; g(); s = s * 10 + g(); } return s; }
double object_48(int n, double d) { std::vector<std::function<int(int)>> ops; for (int k = 1; k < 4; ++k) ops.push_back([k, acc = 0](int x) mutable { acc += k * x; return acc; }); int s = 0; for (auto& o : ops) { o(1); s = s * 100 + o(2); } for (auto o : ops) o(50); return s + ops[0](0); }
namespace n49 {
template <class F> auto compose(F f, int times) { return [f, times](int x) mutable { for (int i = 0; i < times; ++i) x = f(x); return x; }; }
double object_49(int n, double d) { auto g = compose([c = 0](int x) mutable { return x + ++c; }, 3); return g(1) * 100 + g(1); }
}
using n49::object_49;
namespace n50 {
void put(char* p, int k) { for (int i = 0; i < k; ++i) p[i] = 'a' + i; p[k] = 0; }
double object_50(int n, double d) { char b[10]; put(b, 5); put(b + 2, 3); std::string s(b); return s.size() * 1000 + s[2] + strlen(b + 1); }
}
using n50::object_50;
namespace n51 {
bool starts(const char* a, const char* b) { while (*b) if (*a++ != *b++) return false; return true; }
double object_51(int n, double d) { std::string s = "kernel"; return starts(s.c_str(), "ker") + 2 * starts(s.data(), "kx") + 4 * starts("", "") + 8 * (strcmp(s.c_str(), "kernel") == 0); }
}
using n51::object_51;
namespace n52 {
const char* skip(const char* p) { while (*p == ' ') p++; return p; }
double object_52(int n, double d) { const char* t = "  12 "; const char* q = skip(t); int v = 0; for (; *q >= '0' && *q <= '9'; q++) v = v * 10 + (*q - '0'); return v * 100 + (q - t) + atoi(skip(t)); }
}
using n52::object_52;
double object_53(int n, double d) { const char* names[] = {"ab", "cde", "f"}; int k = 0; for (const char* s : names) k = k * 10 + strlen(s); for (auto s : names) k += s[0]; return k + names[1][2]; }
double object_54(int n, double d) { std::string a = "x" + std::string(3, 'y') + 'z', b = a; b += "!"; std::string_view v = b; return a.size() * 10 + v.size() + (a < b) + (a + "!" == b) + b.find("yz") + (b.find("q") == std::string::npos); }
double object_55(int n, double d) { int g[3][4]; for (int i = 0; i < 3; ++i) for (int j = 0; j < 4; ++j) g[i][j] = i * 4 + j; int* p = g[0]; int* q = &g[2][1]; std::swap(p[1], *q); return g[0][1] * 100 + g[2][1] + (q - p); }
namespace n56 {
struct T { float m[2][2]; float trace() const { return m[0][0] + m[1][1]; } const float* data() const { return &m[0][0]; } };
double object_56(int n, double d) { T t{{{1, 2}, {3, 4}}}; const float* p = t.data(); T u = t; u.m[0][0] = 50; return t.trace() * 100 + p[3] + p[1] * 10; }
}
using n56::object_56;
namespace n57 {
void scale(float* a, int k, float s) { for (int i = 0; i < k; ++i) a[i] *= s; }
double object_57(int n, double d) { float a[2][3] = {{1, 2, 3}, {4, 5, 6}}; scale(*a, 6, 2.f); scale(a[1], 3, 10); scale(reinterpret_cast<float*>(a), 2, 0.5f); std::vector<float> v(&a[0][0], &a[0][0] + 6); return v[0] + v[1] * 10 + v[5] * 100; }
}
using n57::object_57;
namespace n58 {
void scale(float (*a)[3], int rows) { for (int i = 0; i < rows; ++i) for (int j = 0; j < 3; ++j) a[i][j] += i; }
double object_58(int n, double d) { float a[2][3] = {{1, 2, 3}, {4, 5, 6}}; scale(a, 2); return a[1][2] + a[0][0] * 100 + std::size(a); }
}
using n58::object_58;
double object_59(int n, double d) { int a[2][3] = {{1, 2, 3}, {4, 5, 6}}; int s = 0; for (auto& row : a) for (int& x : row) { x *= 2; s += x; } int b[3]; std::copy(a[1], a[1] + 3, b); std::memcpy(b, a[0], sizeof(int) * 2); return s * 100 + b[0] + b[1] + b[2]; }
namespace n60 {
int hits = 0;
struct G { int k; G(int v) : k(v) { hits += v; } ~G() { hits -= k; } G(const G&) = delete; };
int early(int n) { G a(100); if (n > 0) { G b(10); if (n > 5) return hits; } return hits; }
double object_60(int n, double d) { hits = 0; int r = early(n); return r * 1000 + hits; }
}
using n60::object_60;
namespace n61 {
int hits = 0;
struct G { ~G() { ++hits; } };
double object_61(int n, double d) { hits = 0; for (int i = 0; i < 3; ++i) { G g; switch (i) { case 0: continue; case 1: break; default: hits += 10; } } while (hits < 20) { G g; if (hits > 15) break; } auto l = [] { G g; return hits; }; int q = l(); return hits * 100 + q; }
}
using n61::object_61;
namespace n62 {
int hits = 0;
struct G { int id; ~G() { hits = hits * 10 + id; } };
double object_62(int n, double d) { hits = 0; { G a{1}; G b{2}; try { G c{3}; throw std::runtime_error("x"); } catch (...) { hits += 5; } } return hits; }
}
using n62::object_62;
double object_63(int n, double d) { const auto& [a, b] = std::pair<int, double>(n, d); std::pair<int, int> p{1, 2}; auto& [x, y] = p; x = 10; y += n; return a + b + p.first * 100 + p.second; }
namespace n64 {
int g(int& x) { return x++; } int g(const int& x) { return x + 100; }
double object_64(int n, double d) { int a = 1; const int b = 5; int r = g(a) + g(b) + g(7); return r * 10 + a; }
}
using n64::object_64;
double object_65(int n, double d) { int x = 5; int* p = &x; int** pp = &p; **pp = 7; int y = 9; *pp = &y; *p += 1; const int* const cp = p; return x * 100 + y * 10 + *cp + (p != nullptr) + (cp == &y); }
namespace n66 {
template <class T> struct Ref { T& r; Ref(T& x) : r(x) {} void add(T v) { r += v; } };
double object_66(int n, double d) { int a = n; double b = d; Ref<int> p(a); Ref<double> q(b); p.add(3); q.add(0.5); auto p2 = p; p2.r = p.r * 2; return a + b; }
}
using n66::object_66;
namespace n67 {
struct It { const std::vector<int>& v; size_t i = 0; bool more() const { return i < v.size(); } int next() { return v[i++]; } };
double object_67(int n, double d) { std::vector<int> v{1, 2, 3}; It it{v}; int s = 0; while (it.more()) { s = s * 10 + it.next(); if (s == 1) v.push_back(7); } return s; }
}
using n67::object_67;
namespace n68 {
struct Buf { char name[8]; int k; };
double object_68(int n, double d) { Buf b{"ab", 3}; b.name[2] = 'c'; b.name[3] = 0; Buf c = b; c.name[0] = 'z'; return std::string(b.name).size() * 100 + b.name[0] + strlen(c.name) + c.name[0]; }
}
using n68::object_68;
double object_69(int n, double d) { const char* names[3] = {"x", "yy", "zzz"}; const char** p = names; p++; return strlen(*p) * 10 + strlen(p[1]) + (*p)[0]; }
double object_70(int n, double d) { char a[] = "hello"; char* e = a + sizeof(a) - 2; for (char* p = a; p < e; ++p, --e) std::swap(*p, *e); return a[0] * 1000 + a[4] + (std::string(a) == "olleh"); }
double object_71(int n, double d) { std::vector<const char*> v{"a", "bc"}; v.push_back("def"); size_t s = 0; for (auto p : v) { while (*p) { s += *p++; } } return s; }
namespace n72 {
int parse(const char*& p) { int v = 0; while (*p >= '0' && *p <= '9') v = v * 10 + (*p++ - '0'); return v; }
double object_72(int n, double d) { const char* t = "12+34"; const char* p = t; int a = parse(p); ++p; int b = parse(p); return a * b + (p - t); }
}
using n72::object_72;
double object_73(int n, double d) { int m[2][3] = {}; auto& r = m[1]; r[2] = 5; int (*p)[3] = &m[0]; p[1][0] = 7; for (auto& row : m) row[1] = 9; int* q = &m[1][2]; q[-2] += 1; return m[1][0] * 100 + m[1][1] * 10 + m[1][2] + *(*(m + 1) + 2); }
namespace n74 {
struct Mat { double v[3][3]; double* operator[](int i) { return v[i]; } const double* row(int i) const { return v[i]; } };
double object_74(int n, double d) { Mat a{}; a[1][2] = 4; a[0][0] = 2; Mat b = a; b[1][2] = 9; return a[1][2] * 10 + b.row(1)[2] + a.row(0)[5] * 100; }
}
using n74::object_74;
double object_75(int n, double d) { auto counter = [c = 0, step = n]() mutable { c += step; return c; }; auto twice = [counter]() mutable { counter(); return counter(); }; int a = twice(); int b = twice(); return a * 1000 + b * 10 + counter(); }
namespace n76 {
struct Pool { std::vector<std::function<int(int)>> fs; void add(std::function<int(int)> g) { fs.push_back(std::move(g)); } int run(int x) { for (auto& g : fs) x = g(x); return x; } };
double object_76(int n, double d) { Pool p; int k = 2; p.add([k](int x) mutable { return x * k++; }); p.add([&k](int x) { return x + k; }); Pool q = p; k = 10; return p.run(1) * 1000 + p.run(1) * 10 + q.run(1); }
}
using n76::object_76;
double object_77(int n, double d) { std::function<int()> g; int x = 0; if (n > 0) g = [x]() mutable { return ++x; }; else g = [] { return 100; }; std::function<int()> h = g; g(); g = h; return g() * 10 + h() + (g ? 1 : 0); }
namespace n78 {
int depth = 0;
struct G { G() { ++depth; } ~G() { --depth; } };
int rec(int k) { G g; return k <= 0 ? depth : rec(k - 1) + depth; }
double object_78(int n, double d) { depth = 0; int a = rec(3); return a * 10 + depth; }
}
using n78::object_78;
namespace n79 {
int log_ = 0; struct G { int k; ~G() { log_ = log_ * 10 + k; } };
int g(int n) { G a{1}; try { G b{2}; if (n > 0) throw std::out_of_range("x"); return 5; } catch (const std::out_of_range&) { G c{3}; return log_; } }
double object_79(int n, double d) { log_ = 0; int r = g(n); return r * 1000 + log_; }
}
using n79::object_79;
namespace n80 {
struct Node { int v; std::vector<Node> kids; int sum() const { int s = v; for (const auto& k : kids) s += k.sum(); return s; } };
double object_80(int n, double d) { Node a{1, {}}; a.kids.push_back({2, {}}); a.kids.push_back({3, {{4, {}}}}); Node b = a; b.kids[0].v = 50; return a.sum() * 100 + b.sum(); }
}
using n80::object_80;
double object_81(int n, double d) { auto p = std::make_shared<std::vector<int>>(2, 5); auto q = p; q->push_back(1); std::unique_ptr<int> u(new int(7)); *u += 1; auto w = std::move(u); return p->size() * 100 + *w + (u == nullptr) + p.use_count() * 0; }
namespace n82 {
struct V3 { float x, y, z; float& operator[](int i) { return (&x)[i]; } };
double object_82(int n, double d) { V3 a{1, 2, 3}; a[1] = 7; return a[0] + a.y * 10; }
}
using n82::object_82;
namespace n83 {
int apply(int (*g)(int, int), int a) { return g(a, 2); } int sub(int a, int b) { return a - b; }
double object_83(int n, double d) { int (*h)(int, int) = sub; auto k = +[](int a, int b) { return a * b; }; return apply(h, 9) * 100 + apply(k, 4) + apply([](int a, int b) { return a % b; }, 7); }
}
using n83::object_83;
double object_84(int n, double d) { std::unique_ptr<int> u(new int(7)); auto w = std::move(u); auto s = std::make_shared<int>(3); std::vector<std::shared_ptr<int>> v; v.push_back(std::move(s)); return *w + (u == nullptr) * 10 + (s ? 100 : 200) + *v[0] * 1000; }
namespace n85 {
struct N { int v; std::unique_ptr<N> next; };
double object_85(int n, double d) { auto a = std::make_unique<N>(); a->v = 1; auto b = std::make_unique<N>(); b->v = 2; b->next = std::move(a); auto c = std::move(b->next); return b->v * 100 + c->v * 10 + (b->next == nullptr) + !a; }
}
using n85::object_85;
namespace n86 {
std::unique_ptr<int> pass(std::unique_ptr<int> p) { *p += 1; return p; }
double object_86(int n, double d) { auto u = std::make_unique<int>(4); u = pass(std::move(u)); auto w = pass(std::move(u)); return *w * 10 + (u ? 1 : 0); }
}
using n86::object_86;
double object_87(int n, double d) { auto p = std::make_unique<int[]>(4); p[2] = 5; int* q = p.get(); auto r = std::move(p); return r[2] + q[2] * 10; }
namespace n88 {
struct H { std::shared_ptr<int> p; H(std::shared_ptr<int> q) : p(std::move(q)) {} };
double object_88(int n, double d) { auto s = std::make_shared<int>(5); H a(s), b(s); *a.p = 9; std::swap(a.p, b.p); return *s + *b.p; }
}
using n88::object_88;
