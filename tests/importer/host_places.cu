struct Arr { int a[3] = {1, 2, 3}; int& get(int i) { return a[i]; } int& operator()(int i) { return a[i]; } int& operator[](int i) { return a[i]; } const int& operator[](int i) const { return a[i]; } };
struct Grid { std::vector<double> v; int w; Grid(int h, int w_) : v(h * w_, 0.5), w(w_) {} double& at(int i, int j) { return v[i * w + j]; } double* row(int i) { return v.data() + i * w; } };
int gstate = 0; int& gref() { return gstate; } int bump() { return ++gstate; } int get_and(int x) { gstate = gstate * 10 + x; return x; }
int twice_arg(int a, int b) { return a * 10 + b; }
struct Holder { std::vector<int> v; Point p; int k = 3; }; struct Acc { double sum = 0; int n = 0; Acc& operator+=(double x) { sum += x; ++n; return *this; } operator double() const { return sum; } };
template <class T> T maxT(const T& a, const T& b) { return a > b ? a : b; } template <class T> void incr(T& x) { x += 1; } template <class T> T& same(T& x) { return x; }
template <class T, class U> U conv(T x) { return static_cast<U>(x); } template <class T> T wrap_add(T a, T b) { T c = a + b; return c; }
int& first_of(std::vector<int>& v) { return v[0]; } std::vector<int>& same_vec(std::vector<int>& v) { return v; } Point& same_point(Point& p) { return p; } const Point& cpoint(const Point& p) { return p; }
int def_state(int x = bump()) { return x; } int side(int& x) { x += 5; return x; } void two_refs(int& a, int& b) { a += 1; b += a; }
struct Guard { int& r; Guard(int& x) : r(x) { r += 1; } ~Guard() { r += 100; } };
struct Ptrs { int* p; const char* name; }; enum class Op : char { Add = 'a', Mul = 'm' }; enum Flag : unsigned { F0 = 1u, F31 = 0x80000000u };
int apply_op(Op o, int a, int b) { switch (o) { case Op::Add: return a + b; case Op::Mul: return a * b; } return -1; }
int fall(int k) { int r = 0; switch (k) { case 0: { int t = 5; r += t; } case 1: r += 10; break; case 2: r = 7; [[fallthrough]]; default: int z = 3; r += z; if (r > 5) break; r = 99; } return r; }
int thrower(int& s, int k) { s += 1; if (k > 2) throw std::runtime_error("k"); s += 10; return s; }
struct Vec { float d[2]; Vec operator*(float s) const { Vec r = *this; r.d[0] *= s; r.d[1] *= s; return r; } Vec& operator*=(float s) { d[0] *= s; d[1] *= s; return *this; } };
struct Chain { int v = 0; Chain& set(int x) { v = x; return *this; } Chain& add(int x) { v += x; return *this; } Chain copy() const { return *this; } };
struct Stat { static int total; int id; Stat() : id(++total) {} }; int Stat::total = 0;
#define MAXM(a, b) ((a) > (b) ? (a) : (b))
#define INC_TWICE(x) do { ++(x); ++(x); } while (0)
#define DEF_FN(name, op) int name(int a, int b) { return a op b; }
DEF_FN(fn_sub, -) DEF_FN(fn_shl, <<)
using BinOp = int (*)(int, int); const BinOp kOps[] = {fn_sub, fn_shl}; int run_op(int i, int a, int b) { return kOps[i](a, b); }
union Bits { float f; uint32_t u; };
int static_count() { static int c = 0; return ++c; } template <int K> int static_t() { static int c = K; return ++c; }
int sum_arr(const int (&a)[3]) { return a[0] + a[1] + a[2]; } void fill3(int (&a)[3], int v) { for (int& x : a) x = v; } void fill_p(int a[], int n) { for (int i = 0; i < n; ++i) a[i] = i; }
void out_p(int* o) { *o = 42; } void out_pp(int** o, int* x) { *o = x; } bool parse(const std::string& s, double* out) { *out = s.size(); return true; }
struct Tree { int v; std::unique_ptr<Tree> next; }; struct Abs { virtual int f() const { return 1; } int g() const { return f() * 10; } }; struct Con : Abs { int f() const override { return 2; } };
int by_base(const Abs& a) { return a.g(); } int ov(unsigned) { return 1; } int ov(long) { return 2; } int ov(char) { return 3; } int ov(float) { return 4; }
struct Range { int lo, hi; struct It { int i; int operator*() const { return i; } It& operator++() { ++i; return *this; } bool operator!=(const It& o) const { return i != o.i; } }; It begin() const { return {lo}; } It end() const { return {hi}; } };
std::string& app(std::string& s, const char* t) { s += t; return s; }
void modv(std::vector<int> v, std::vector<int>& w) { v[0] = 1; w[0] = 1; } struct Small { uint8_t b; int8_t c; uint16_t h; bool f; float x; };
double case_0(int n, double d) { int a = 1, b = 2; pick(a, b, n > 0) = 9; return a * 10 + b; }
double case_1(int n, double d) { int a = 1, b = 2; pick(a, b, n > 0) += 4; pick(a, b, false)++; --pick(a, b, true); return a * 10 + b; }
double case_2(int n, double d) { int a = 1, b = 2; int& r = pick(a, b, n > 0); r = 7; r++; return a * 10 + b; }
double case_3(int n, double d) { int a = 1, b = 2; int c = pick(a, b, n > 0) + 5; int e = pick(a, b, true); e = 50; return a * 10 + b + c; }
double case_4(int n, double d) { int a = 1, b = 2; (n > 0 ? a : b) = 9; return a * 10 + b; }
double case_5(int n, double d) { int a = 1, b = 2; (n > 0 ? a : b) += 9; (n > 0 ? b : a)++; return a * 10 + b; }
double case_6(int n, double d) { int a = 1, b = 2; int& r = n > 0 ? a : b; r = 9; r += 3; return a * 10 + b; }
double case_7(int n, double d) { int a = 1, b = 2; const int& r = n > 0 ? a : b; a = 100; b = 200; return r; }
double case_8(int n, double d) { int a = 1; const int& r = a; a = 5; return r; }
double case_9(int n, double d) { std::vector<int> v{1, 2}; const int& r = v[0]; v[0] = 9; return r; }
double case_10(int n, double d) { Point p{1, 2}; const int& r = p.x; p.x = 7; return r; }
double case_11(int n, double d) { Arr a; a[1] = 5; a.get(0) += 4; a(2)++; Arr b = a; b[0] = 100; return a[0] * 100 + a[1] * 10 + a[2]; }
double case_12(int n, double d) { Arr a; int& r = a[2]; r = 8; int c = a[2]; c = 1; return a.a[2] + c; }
double case_13(int n, double d) { Grid g(2, 3); g.at(1, 2) = 4; g.at(0, 0) += 1; g.row(1)[0] = 9; return g.v[5] + g.v[0] * 10 + g.v[3] * 100; }
double case_14(int n, double d) { gstate = 0; gref() = 5; gref() += 2; gref()++; return gstate; }
double case_15(int n, double d) { gstate = 0; int a = bump() + bump() * 10; return a; }
double case_16(int n, double d) { gstate = 0; int a = get_and(1) - get_and(2) * get_and(3); return gstate; }
double case_17(int n, double d) { gstate = 0; bool r = get_and(0) && get_and(1) || get_and(2); return gstate + r; }
double case_18(int n, double d) { gstate = 0; int v[3] = {get_and(1), get_and(2), get_and(3)}; return gstate * 10 + v[2]; }
double case_19(int n, double d) { gstate = 0; Point p{get_and(1), get_and(2)}; return gstate; }
double case_20(int n, double d) { gstate = 0; int i = 0; std::vector<int> v(4); v[i++] = 5; v[i++] = 6; v[i] = i; return v[0] * 100 + v[1] * 10 + v[2]; }
double case_21(int n, double d) { int i = 2; int a[4] = {0, 1, 2, 3}; int r = a[i--]; r = r * 10 + a[--i]; return r * 10 + i; }
double case_22(int n, double d) { int i = 0; int a[4] = {1, 2, 3, 4}; a[i++] += 10; a[i++] *= 3; return a[0] * 100 + a[1] * 10 + i; }
double case_23(int n, double d) { int i = 0; int a[4] = {1, 2, 3, 4}; int* p = a; *p++ = 7; *++p = 8; (*p)++; return a[0] * 100 + a[2] * 10 + (p - a); }
double case_24(int n, double d) { int a[3] = {1, 2, 3}; int *p = a, *q = a + 2; int s = 0; while (p <= q) s = s * 10 + *p++; return s; }
double case_25(int n, double d) { gstate = 0; return def_state() * 10 + def_state() + def_state(5) * 100; }
double case_26(int n, double d) { std::vector<int> v{1, 2, 3}; first_of(v) = 9; same_vec(v).push_back(4); same_vec(v)[1] = 7; return total_of(v); }
double case_27(int n, double d) { std::vector<int> v{1, 2, 3}; std::vector<int>& w = same_vec(v); w[0] = 50; auto c = same_vec(v); c[1] = 500; return total_of(v); }
double case_28(int n, double d) { std::vector<int> v{1, 2, 3}; auto& w = v; auto c = v; auto&& u = v; w[0] = 5; c[1] = 100; u[2] = 7; return total_of(v); }
double case_29(int n, double d) { Point p{1, 2}; same_point(p).x = 5; Point& q = same_point(p); q.y = 6; Point c = same_point(p); c.x = 99; auto e = same_point(p); e.y = 99; return p.x * 10 + p.y; }
double case_30(int n, double d) { Point p{1, 2}; Point c = cpoint(p); c.x = 5; const Point& r = cpoint(p); p.y = 9; return p.x * 100 + r.y * 10 + c.x; }
double case_31(int n, double d) { Point a{1, 2}, b{3, 4}; Point c = n > 0 ? a : b; c.x = 50; return a.x + b.x * 10 + c.x * 100; }
double case_32(int n, double d) { Point a{1, 2}, b{3, 4}; Point& c = n > 0 ? a : b; c.x = 50; return a.x + b.x * 10 + c.x * 100; }
double case_33(int n, double d) { Point a{1, 2}, b{3, 4}; (n > 0 ? a : b) = {7, 8}; return a.x + b.x * 10; }
double case_34(int n, double d) { Point a{1, 2}, b{3, 4}; std::swap(a, b); Point t = a; a = b; b = t; b.x = 9; return a.x + b.x * 10 + t.x * 100; }
double case_35(int n, double d) { Point a[2] = {{1, 2}, {3, 4}}; Point b[2] = {a[1], a[0]}; b[0].x = 50; std::swap(a[0], a[1]); a[0].y = 9; return a[0].x + a[1].x * 10 + b[0].x + a[0].y; }
double case_36(int n, double d) { std::vector<Point> v{{1, 2}, {3, 4}}; auto w = v; w[0].x = 50; std::vector<Point> u(2, v[1]); u[0].x = 9; return v[0].x + v[1].x * 10 + u[1].x * 100 + w[0].x; }
double case_37(int n, double d) { std::vector<std::vector<int>> v(2, std::vector<int>(2, 1)); v[0][0] = 5; auto w = v; w[1][1] = 9; auto& r = v[1]; r[0] = 3; return v[0][0] + v[1][0] * 10 + v[1][1] * 100; }
double case_38(int n, double d) { std::vector<std::vector<int>> v; std::vector<int> r{1}; v.push_back(r); r[0] = 5; v.push_back(r); v[0].push_back(7); return v[0][0] + v[1][0] * 10 + r.size() * 100; }
double case_39(int n, double d) { Holder h; h.v = {1, 2}; h.p = {3, 4}; Holder g = h; g.v[0] = 9; g.p.x = 9; h.v.push_back(3); std::vector<Holder> hs{h, g}; hs[0].v[0] = 77; Holder k = hs[1]; k.k = 5; return h.v[0] + g.v.size() * 10 + h.p.x * 100 + hs[1].k; }
double case_40(int n, double d) { Holder h; auto& r = h.v; r.push_back(4); auto p = &h; p->p.x = 5; p->v.push_back(6); auto q = *p; q.v[0] = 100; return h.v[0] + h.v.size() * 10 + h.p.x * 100; }
double case_41(int n, double d) { std::map<std::string, std::vector<int>> m; m["a"].push_back(1); m["a"].push_back(2); auto& r = m["b"]; r.push_back(5); auto c = m; c["a"][0] = 100; return m["a"].size() * 10 + m["b"][0] + m["a"][0]; }
double case_42(int n, double d) { std::map<int, Point> m; m[1].x = 5; m[1].y += 2; Point p = m[1]; p.x = 9; return m[1].x * 10 + m[1].y; }
double case_43(int n, double d) { std::pair<Point, int> p{{1, 2}, 3}; auto q = p; q.first.x = 50; p.first.y = 7; return p.first.x + p.first.y * 10 + q.first.x * 100; }
double case_44(int n, double d) { std::tuple<std::vector<int>, int> t{{1, 2}, 3}; auto u = t; std::get<0>(u)[0] = 9; auto& r = std::get<0>(t); r[1] = 5; std::get<1>(t)++; return std::get<0>(t)[0] + std::get<0>(t)[1] * 10 + std::get<1>(t) * 100; }
double case_45(int n, double d) { std::optional<Point> o = Point{1, 2}; auto q = o; q->x = 50; o->y = 7; return o->x + o->y * 10 + q->x * 100; }
double case_46(int n, double d) { int k = 1; auto f = [&]() { return k; }; auto g = [=]() { return k; }; k = 5; return f() * 10 + g(); }
double case_47(int n, double d) { std::vector<int> v{1}; auto g = [=]() { return v[0]; }; auto f = [&]() { return v[0]; }; v[0] = 5; return f() * 10 + g(); }
double case_48(int n, double d) { Point p{1, 2}; auto g = [p]() { return p.x; }; auto h = [&p]() { p.y = 9; return p.x; }; p.x = 5; return g() * 10 + h() + p.y * 100; }
double case_49(int n, double d) { std::vector<std::function<int()>> fs; for (int i = 0; i < 3; ++i) { int j = i * 2; fs.push_back([&fs, i, j]() { return i * 10 + j; }); } return fs[0]() + fs[1]() * 100 + fs[2](); }
double case_50(int n, double d) { std::vector<std::function<int()>> fs; int c = 0; for (int i = 0; i < 3; ++i) { fs.push_back([&c, i]() { c += i; return c; }); } for (auto& f : fs) f(); return c; }
double case_51(int n, double d) { int x = 1; { int x = 2; x++; { int x = 10; x++; } x++; } for (int x = 0; x < 3; ++x) {} return x; }
double case_52(int n, double d) { int x = 1; int y = x; { int x = y + 5; y = x; } if (int x = 3) y += x; return x * 100 + y; }
double case_53(int n, double d) { int x = 1; auto f = [&](int x) { x += 10; return x; }; int r = f(x); return r * 10 + x; }
double case_54(int n, double d) { int s = 0; for (int i = 0; i < 3; ++i) { static int k = 0; k += i; s = k; } return s > 0; }
double case_55(int n, double d) { int i = 0; for (; i < 5; ++i) { if (i == 3) break; } return i; }
double case_56(int n, double d) { int s = 0; for (int i = 0; i < 6; ++i) { if (i % 2) continue; s = s * 10 + i; } return s; }
double case_57(int n, double d) { int s = 0, i = 0; do { if (i == 2) continue; s += i; } while (++i < 5); return s * 10 + i; }
double case_58(int n, double d) { int s = 0; for (int i = 0; i < 4; ++i) { switch (i) { case 1: continue; case 2: s += 10; break; default: s += 1; } s += 100; } return s; }
double case_59(int n, double d) { int s = 0; for (int i = 0, j = 10; i < j; i += 2, --j) s += i * j; return s; }
double case_60(int n, double d) { int s = 0; for (unsigned i = 3; i-- > 0;) s = s * 10 + i; return s; }
double case_61(int n, double d) { int s = 0; while (true) { if (++s > 4) break; if (s == 2) { s += 1; continue; } } return s; }
double case_62(int n, double d) { return fall(0) * 1000 + fall(1) * 100 + fall(2) * 10 + fall(5); }
double case_63(int n, double d) { int r = 0; switch (n) { case 7: case 0: r = 1; break; default: r = 2; break; case -7: r = 3; } return r; }
double case_64(int n, double d) { int r = 0; switch (small(n)) { default: r += 1; case 3: r += 10; case 7: r += 100; break; case 0: r += 1000; } return r; }
double case_65(int n, double d) { switch (n > 0) { case true: return 1; case false: return 2; } return 3; }
double case_66(int n, double d) { char c = 'b'; switch (c) { case 'a': return 1; case 'b': return 2; } return 3; }
double case_67(int n, double d) { return apply_op(Op::Add, n % 100, 2) + apply_op(Op::Mul, 3, 4) + apply_op(static_cast<Op>('m'), 2, 2) + apply_op((Op)1, 2, 2); }
double case_68(int n, double d) { return (F31 > 0) + (F0 | F31) % 7 + (int)Op::Add; }
double case_69(int n, double d) { int s = 0; try { thrower(s, 1); thrower(s, 5); s += 1000; } catch (const std::exception& e) { s += 100; } return s; }
double case_70(int n, double d) { int s = 0; try { s = 1; int t = thrower(s, 9) + (s = 50); s = t; } catch (...) { s += 7; } return s; }
double case_71(int n, double d) { int s = 0; for (int i = 0; i < 4; ++i) { try { if (i == 1) continue; if (i == 3) throw std::runtime_error("x"); s += 1; } catch (std::exception&) { s += 10; break; } s += 100; } return s; }
double case_72(int n, double d) { int s = 0; try { try { throw std::out_of_range("a"); } catch (std::runtime_error&) { s = 1; } } catch (std::logic_error& e) { s = 2; } return s; }
double case_73(int n, double d) { int s = 0; try { try { throw std::runtime_error("a"); } catch (const std::runtime_error& e) { s += 1; throw; } } catch (const std::exception& e) { s += 10 + std::string(e.what()).size(); } return s; }
double case_74(int n, double d) { int a = 1; incr(a); double b = 0.5; incr(b); uint8_t c = 255; incr(c); std::vector<int> v{1}; incr(v[0]); Point p{1, 1}; incr(p.x); return a + b + c + v[0] * 10 + p.x * 100; }
double case_75(int n, double d) { int a = 1; same(a) = 5; same(a)++; std::string s = "x"; same(s) += "yz"; Point p{1, 2}; same(p).x = 9; return a * 100 + s.size() * 10 + p.x; }
double case_76(int n, double d) { return maxT(n, 3) + maxT(2.5, d) + maxT<int64_t>(n, 1) + maxT<uint8_t>(200, 100); }
double case_77(int n, double d) { return conv<int, uint8_t>(n) + conv<double, int>(d > 1e8 ? 3.7 : d) + conv<int, bool>(n) + conv<float, int64_t>(2.9f); }
double case_78(int n, double d) { return wrap_add<uint8_t>(200, 100) + wrap_add<int8_t>(100, 100) + wrap_add<float>(0.1, 0.2) + wrap_add<uint32_t>(4000000000u, 500000000u); }
double case_79(int n, double d) { int x = 1; int r = side(x) + side(x) * 10; return r * 100 + x; }
double case_80(int n, double d) { int a = 1; two_refs(a, a); int b = 2, c = 3; two_refs(b, c); return a * 100 + b * 10 + c; }
double case_81(int n, double d) { std::vector<int> v{1, 2}; two_refs(v[0], v[1]); Point p{1, 2}; two_refs(p.x, p.y); int arr[2] = {1, 2}; two_refs(arr[0], arr[1]); return v[1] * 100 + p.y * 10 + arr[1]; }
double case_82(int n, double d) { int a[3] = {1, 2, 3}; fill3(a, 4); int b[3]; fill_p(b, 3); return sum_arr(a) * 10 + sum_arr(b); }
double case_83(int n, double d) { int a[2][3] = {{1, 2, 3}, {4, 5, 6}}; a[1][0] = 9; int* p = a[0]; p[1] = 7; int s = 0; for (auto& r : a) for (int x : r) s = s * 3 + x; return s; }
double case_84(int n, double d) { int o = 0, *p = nullptr; out_p(&o); out_pp(&p, &o); *p += 1; double z; bool ok = parse("abc", &z); return o * 10 + ok + z; }
double case_85(int n, double d) { Ptrs t{nullptr, "ab"}; int k = 4; t.p = &k; *t.p = 6; Ptrs u = t; *u.p += 1; return k * 10 + std::string(u.name).size(); }
double case_86(int n, double d) { int i = 3; int& r = i; int* p = &r; *p = 7; int& q = *p; q++; return i + r; }
double case_87(int n, double d) { int x = 3; int y = x++ * 2 + x; return y > 0; }
double case_88(int n, double d) { unsigned a = 1; int b = -1; return (a > b) + (a + b == 0) * 2 + (-1 < 1u) * 4 + (int64_t(-1) < 1u) * 8; }
double case_89(int n, double d) { size_t s = 3; int k = -1; return (k < s) + (s - 4 > 0) * 2 + ((int)s - 4 > 0) * 4; }
double case_90(int n, double d) { for (int i = 0; i < 3; ++i) { if (i > std::vector<int>{}.size()) return i; } return -1; }
double case_91(int n, double d) { std::vector<int> v; return (v.size() - 1 > 5) + (int(v.size()) - 1 < 0) * 2; }
double case_92(int n, double d) { bool b = true; b += 5; bool c = b && 2; int i = b * 10 + c; b = !b; i += b; i += true + true; bool e = true & 2; return i * 10 + e; }
double case_93(int n, double d) { bool b = n; bool c = d; bool e = (bool)0.1; int s = b + c + e; b ^= true; b |= 2; return s * 10 + b; }
double case_94(int n, double d) { char c = 127; c++; char e = 'a' + 1; unsigned char u = -1; short h = 40000; return c + e + u + h; }
double case_95(int n, double d) { char c = -1; unsigned char u = c; int i = c, j = u; unsigned k = c; return i + j + (k > 100) + (c == 0xFF) + (u == 0xFF) * 2; }
double case_96(int n, double d) { uint8_t a = 10, b = 20; auto c = a - b; uint8_t e = a - b; return c + e + (a - b < 0) + ((uint8_t)(a - b) > 0) * 2; }
double case_97(int n, double d) { uint16_t a = 50000, b = 2; unsigned c = a * b; uint16_t e = a * b; return c + e; }
double case_98(int n, double d) { int64_t a = 1 << 30; int b = 1 << 30; int64_t c = (int64_t)b * 4; return a + c; }
double case_99(int n, double d) { uint32_t a = 1u << 31; return (a << 1) + (a >> 31) + (~0u >> 28) + (uint64_t(a) << 1); }
double case_100(int n, double d) { int a = -17; return a / 5 * 100 + a % 5 * 10 + (a >> 1) + (unsigned(a) >> 30); }
double case_101(int n, double d) { float f = 16777217; double e = 16777217; int i = 16777217; f = i; return f + e - (float)i; }
double case_102(int n, double d) { float a = 0.1f, b = 0.2f; double c = a + b; double e = a * 3; float g = a * 3.0; return c + e + g; }
double case_103(int n, double d) { float a = 1e38f; double b = a * 10.f; double c = a * 10.0; return std::isinf(b) + std::isinf(c); }
double case_104(int n, double d) { float x = 3; x /= 7; x = x * x - 1; x += 1e-8; int i = x * 10; return x + i; }
double case_105(int n, double d) { int i = 10; i *= 0.35; i += 0.9; i -= 1.5f; i /= 0.4; return i; }
double case_106(int n, double d) { uint8_t b = 10; b *= 0.5; b += 300; b -= 20; b <<= 2; b /= 3; return b; }
double case_107(int n, double d) { int64_t s = 0; for (int i = 0; i < 5; ++i) s += i * 1000000000LL; return s; }
double case_108(int n, double d) { double r = 1 / 3 + 1 / 3.f + 1.f / 3 + 7 % 4; return r; }
double case_109(int n, double d) { int x = 1; int r = MAXM(x++, 0); return r * 10 + x; }
double case_110(int n, double d) { int x = 1; INC_TWICE(x); if (n > 0) INC_TWICE(x); else x = 0; return x; }
double case_111(int n, double d) { return fn_sub(5, 3) + fn_shl(1, 4) + run_op(0, 9, 2) + run_op(1, 3, 2); }
double case_112(int n, double d) { BinOp ops[2] = {fn_shl, fn_sub}; BinOp f = n > 0 ? ops[0] : ops[1]; return f(8, 2) + (f == fn_shl) + (*f)(1, 1); }
double case_113(int n, double d) { Vec a{{1, 2}}; Vec b = a * 3; b *= 2; Vec c = (a *= 2) * 2; return a.d[0] + b.d[1] * 10 + c.d[0] * 100; }
double case_114(int n, double d) { Chain c; c.set(5).add(2).add(3); Chain e = c.copy().add(100); Chain& r = c.add(1); r.add(1); return c.v * 1000 + e.v; }
double case_115(int n, double d) { Chain a, b; a = b.set(3); b.add(1); Chain c = a.add(10); c.add(100); return a.v * 100 + b.v * 10 + c.v; }
double case_116(int n, double d) { Acc a; a += 1.5; (a += 2) += 3; double s = a; Acc b = a; b += 10; return s + a.n * 10 + b.n * 100 + double(b) * 1000; }
double case_117(int n, double d) { Con c; Abs a; Abs s = c; return by_base(c) + by_base(a) * 100 + s.g(); }
double case_118(int n, double d) { return ov(1u) + ov(1L) * 10 + ov('a') * 100 + ov(1.f) * 1000; }
double case_119(int n, double d) { std::string s = "a"; app(s, "b") += "c"; app(app(s, "d"), "e"); std::string t = app(s, "f"); t += "zzz"; std::string& u = app(s, "g"); u += "h"; return s.size() * 10 + t.size(); }
double case_120(int n, double d) { std::vector<int> v{5, 6}, w{5, 6}; modv(v, w); return v[0] * 10 + w[0]; }
double case_121(int n, double d) { Small s{255, -1, 65535, true, 0.1f}; s.b += 1; s.c -= 128; s.h++; s.f += 2; s.x *= 3; return s.b + s.c + s.h + s.f + s.x; }
double case_122(int n, double d) { Small s{}; s.b = 300; s.c = 200; s.h = 70000; s.f = 5; s.x = 0.1; Small t = s; t.b--; s.b = t.c; return s.b + s.c + s.h + s.f + s.x + t.b; }
double case_123(int n, double d) { Small a[2] = {}; a[0].b = 257; a[1].b = --a[0].b; a[1].b--; return a[0].b + a[1].b; }
double case_124(int n, double d) { std::vector<uint8_t> v(2); v[0] = 257; v[1] -= 1; v[0] += v[1]; uint8_t& r = v[1]; r += 5; v.push_back(300); return v[0] * 1000000 + v[1] * 1000 + v[2]; }
double case_125(int n, double d) { std::vector<float> v{0.1, 0.2}; v[0] *= 3; v.push_back(0.3); float s = 0; for (auto x : v) s += x; return s + std::accumulate(v.begin(), v.end(), 0.0) + std::accumulate(v.begin(), v.end(), 0); }
double case_126(int n, double d) { std::array<uint8_t, 3> a{1, 2, 3}; a[0] -= 2; auto b = a; b[1] = 300; std::array<std::array<int, 2>, 2> m{}; m[0][1] = 5; auto k = m; k[0][1] = 9; return a[0] + b[1] + m[0][1]; }
double case_127(int n, double d) { std::vector<bool> v(3); v[0] = 5; v[1] = v[0]; v[2] = !v[1]; int s = 0; for (bool b : v) s = s * 2 + b; return s; }
double case_128(int n, double d) { int x = 5; x = x > 3 ? x - 1 : x + 1; x = (x, x + 1); int y = (x++, x * 2); return x * 100 + y; }
double case_129(int n, double d) { int a = 3, b = 4; a ^= b; b ^= a; a ^= b; return a * 10 + b; }
double case_130(int n, double d) { int a = 1, b = 2; int t = a; a = b, b = t; return a * 10 + b; }
double case_131(int n, double d) { int a, b; a = (b = 3) * 2; b += (a = 4); return a * 10 + b; }
double case_132(int n, double d) { int a[3]; a[0] = a[1] = a[2] = n % 10; int b, *p = &b; *p = a[0] = 5; return a[0] + a[1] * 10 + b * 100; }
double case_133(int n, double d) { int i = 0; if ((i = 3) > 2 && (i += 2)) i *= 2; return i; }
double case_134(int n, double d) { int i = 0; while ((i += 3) < 10) { if (i == 6) i++; } return i; }
double case_135(int n, double d) { int i = 5; bool r = i++ == 5 && i == 6; return r * 10 + i; }
double case_136(int n, double d) { int i = 0; auto f = [&](int k) { i += k; return i; }; int r = f(1) * 100 + f(2) * 10 + f(3); return r; }
double case_137(int n, double d) { int i = 3; int r = (i > 2 ? i++ : i--) + i; return r > 0; }
double case_138(int n, double d) { auto f = [](auto x) { return x / 2; }; return f(5) + f(5.0) + f(5.f) + f(uint8_t(255)); }
double case_139(int n, double d) { auto f = [](int x) { return x; }; return f(2.9) + f('a') + f(true); }
double case_140(int n, double d) { auto f = [](uint8_t x) -> int8_t { return x + 100; }; return f(300) + f(n); }
double case_141(int n, double d) { auto f = [](float x) { return x; }; double r = f(0.1); return r; }
double case_142(int n, double d) { auto sum = [](auto... xs) { return (xs + ... + 0); }; return sum(1, 2.5, 3); }
double case_143(int n, double d) { std::function<double(float)> f = [](double x) { return x * 3; }; return f(0.1); }
double case_144(int n, double d) { std::function<int(double)> f = small; int (*g)(int) = &small; return f(17.9) + g(25); }
double case_145(int n, double d) { int k = 0; std::function<void(int)> f = [&k](int x) { k += x; }; auto g = f; f(1); g(2); return k; }
double case_146(int n, double d) { int r = 0; auto p = [&r](int a) { return [&r, a](int b) { r += a * b; return r; }; }; p(2)(3); return p(1)(1) + r * 10; }
double case_147(int n, double d) { const int N = 3; int a[N] = {}; for (int i = 0; i < N; ++i) a[i] = [&] { return i * N; }(); return a[2]; }
double case_148(int n, double d) { struct L { int v; int twice() const { return v * 2; } }; L l{4}; auto f = [&l] { l.v++; return l.twice(); }; return f() + l.v; }
double case_149(int n, double d) { enum { A = 3, B = A * 2, C }; return A + B * 10 + C * 100; }
double case_150(int n, double d) { constexpr int t[] = {1, 2, 3}; static const float w[] = {0.1f, 0.2f}; return t[n & 1] + w[1] + sizeof(t) / sizeof(t[0]); }
double case_151(int n, double d) { auto [a, b] = std::pair<uint8_t, float>(300, 0.1); a += 1; return a + b; }
double case_152(int n, double d) { auto t = std::make_tuple(1, 2.5f, 'c'); auto& [x, y, z] = t; return x + y + z; }
double case_153(int n, double d) { std::pair<int, int> p{1, 2}; auto& [x, y] = p; x = 9; return p.first * 10 + y; }
double case_154(int n, double d) { Point p{1, 2}; auto [x, y] = p; p.x = 9; x += 1; return x * 10 + p.x; }
double case_155(int n, double d) { std::vector<Point> v{{1, 2}, {3, 4}}; for (auto& [x, y] : v) x += y; int s = 0; for (const auto& [x, y] : v) s = s * 10 + x; for (auto [x, y] : v) x = 100; return s; }
double case_156(int n, double d) { std::vector<Point> v{{1, 2}, {3, 4}}; for (Point p : v) p.x = 100; for (Point& p : v) p.y = 7; for (auto p = v.begin(); p != v.end(); ++p) p->x += 1; return v[0].x + v[1].x * 10 + v[1].y * 100; }
double case_157(int n, double d) { std::vector<std::pair<int, int>> v{{1, 2}}; v[0].first = 5; v[0].second += 3; for (auto& p : v) p.first++; auto& q = v[0]; q.second = 1; return v[0].first * 10 + v[0].second; }
double case_158(int n, double d) { std::map<int, int> m{{1, 2}, {3, 4}}; for (auto& [k, x] : m) x += k; int s = 0; for (auto& kv : m) { kv.second *= 2; s = s * 10 + kv.second; } return s + m[1]; }
double case_159(int n, double d) { std::map<int, int> m; m[5]++; m[5] += 2; int& r = m[7]; r = 3; auto it = m.find(5); it->second = 9; return m[5] * 10 + m[7] + m.size() * 100; }
double case_160(int n, double d) { std::vector<int> v{3, 1, 2}; std::sort(v.begin(), v.end(), [](int a, int b) { return a > b; }); v.erase(v.begin()); v.insert(v.begin(), 9); return v[0] * 100 + v[1] * 10 + v[2]; }
double case_161(int n, double d) { std::vector<int> v{1, 2, 3}; auto it = v.begin(); *it = 5; ++it; *it += 10; it += 1; int k = it - v.begin(); auto e = v.end() - 1; *e = 9; return v[0] * 100 + v[1] * 10 + v[2] + k; }
double case_162(int n, double d) { std::vector<int> v(3); std::iota(v.begin(), v.end(), 1); int* p = &v[1]; *p = 7; p[1] = 8; int* q = v.data() + 1; return (p == q) + v[1] * 10 + v[2] * 100; }
double case_163(int n, double d) { std::vector<int> v{1, 2, 3}; int x = v.back(); v.pop_back(); v.back() = x; std::vector<int> w = std::move(v); w[0] = 5; return w[0] * 10 + w[1]; }
double case_164(int n, double d) { std::vector<int> v{1, 2}; v = {5, 6, 7}; v.assign(2, 9); v.resize(3); v.resize(4, 1); std::vector<int> w(v.begin() + 1, v.end()); w[0] = 0; return v[0] * 1000 + v[1] * 100 + v[2] * 10 + v[3] + w.size(); }
double case_165(int n, double d) { int s = 0; for (int x : {1, 2, 3}) s = s * 10 + x; for (auto x : std::vector<int>{4, 5}) s = s * 10 + x; return s; }
double case_166(int n, double d) { if (n > 0 and not (d < 0) or n == 0) return 1; return 2; }
double case_167(int n, double d) { return n > 0 ? (d > 1 ? 1 : 2) : d < -1 ? 3 : 4; }
double case_168(int n, double d) { return sizeof(Small) + sizeof(Point) * 10 + alignof(double) + sizeof(int[3]) + sizeof(Op); }
double case_169(int n, double d) { const char* names[] = {"a", "bb", "ccc"}; int s = 0; for (auto nm : names) s = s * 10 + std::string(nm).size(); return s + (names[0] == std::string("a")); }
double case_170(int n, double d) { int x = n; int& r = x; auto c = r; c++; auto& q = r; q++; decltype(r) z = x; z += 10; return x - n; }
double case_171(int n, double d) { int x = 3; int* p = &x; int** pp = &p; **pp = 5; int y = 7; *pp = &y; *p = 8; return x * 10 + y; }
double case_172(int n, double d) { void* v = nullptr; int x = 5; v = &x; int* p = (int*)v; *p = 6; return x + (v != nullptr); }
double case_173(int n, double d) { int a[4] = {1, 2, 3, 4}; int* b = a + 1; int* e = a + 4; int s = 0; for (int* p = b; p != e; ++p) s = s * 10 + *p; return s + (e - b) + b[-1]; }
double case_174(int n, double d) { uint32_t x = 0x12345678; uint8_t lo = x, hi = x >> 24; int16_t m = x >> 4; return lo + hi + m; }
double case_175(int n, double d) { double x = -2.5; return (int)x + (int)(x - 0.6) * 10 + std::lround(x) * 100 + (int64_t)(x * 1e10); }
double case_176(int n, double d) { float f = 1e10f; int64_t i = f; double back = i; return back; }
double case_177(int n, double d) { return 5 == 5.0f && 0.1f != 0.1 && 'a' == 97 && true == 1; }
double case_178(int n, double d) { return !n + !!n * 2 + -(-n) + +n + ~n + -true; }
double case_179(int n, double d) { return (n > 0) - (n < 0) + (n > 0 && d > 0) * 10; }
double case_180(int n, double d) { int x = n; x = -x; x -= -x; return x; }
double case_181(int n, double d) { return INT_MAX + (int64_t)1 + (unsigned)INT_MAX + 1u; }
double case_182(int n, double d) { uint64_t a = 1ull << 63; return (double)a + (a > 0) + (int64_t)(a >> 1) / 4; }
double case_183(int n, double d) { int a = 7; a <<= 1; a >>= 2; a |= 8; a &= ~1; a %= 5; a ^= 6; return a; }
double case_184(int n, double d) { short a = 30000; a += 10000; unsigned short b = a; b -= 50000; return a + b; }
double case_185(int n, double d) { unsigned a = 5; a -= 10; a /= 2; a %= 1000; a *= 4294967295u; return a; }
double case_186(int n, double d) { int x = 1; x += side(x); return x; }
double case_187(int n, double d) { uint8_t x = 250; int y = 3; x += side(y) + y; return x + y; }
double case_188(int n, double d) { int t = 0; auto f = [&]() { t += 5; return t; }; t += f(); return t; }
double case_189(int n, double d) { Chain c; c.v = 1; c.v += c.add(3).v; return c.v; }
double case_190(int n, double d) { int a[3] = {1, 2, 3}; int i = 0; auto f = [&]() { return ++i; }; a[i] += f(); return a[0] * 10 + a[1]; }
double case_191(int n, double d) { std::string s = "a"; auto f = [&]() { s += "b"; return s; }; s += f(); return s.size(); }
double case_192(int n, double d) { float x = 1; auto f = [&]() { x *= 2; return x; }; x -= f() * 3; return x; }
double case_193(int n, double d) { Point p{1, 2}; Point* q = &p; Point& r = p; p = {5, 6}; return q->x * 10 + r.y; }
double case_194(int n, double d) { Point p{1, 2}; auto f = [&p](Point v) { p = v; }; f({7, 8}); auto& q = same_point(p); p = Point{1, 1}; return q.x + p.y * 10; }
double case_195(int n, double d) { std::vector<int> v{1}; auto& r = same_vec(v); v = {4, 5}; std::vector<int>* p = &v; v = std::vector<int>(3, 2); return r.size() * 10 + p->size() + r[0] * 100; }
double case_196(int n, double d) { std::vector<std::pair<int, double>> v{{1, 2.5}}; for (auto& [a, b] : v) { a += 2; b *= 2; } for (auto [a, b] : v) a = 100; return v[0].first * 10 + v[0].second; }
double case_197(int n, double d) { std::map<std::string, int> m{{"a", 1}}; for (auto& [k, x] : m) x += 5; for (auto it = m.begin(); it != m.end(); ++it) it->second *= 2; return m["a"]; }
double case_198(int n, double d) { int fallv = 0; switch (small(n)) { case 7: fallv += 1; [[fallthrough]]; case 3: fallv += 2; break; case 0: fallv = 50; } return fallv; }
double case_199(int n, double d) { struct R { int n; R(int k) : n(k) { gstate += n; } ~R() { gstate = gstate * 10 + n; } }; gstate = 0; { R a(1); R b(2); gstate += 5; } return gstate; }
double case_200(int n, double d) { struct R { int n; R(int k) : n(k) {} ~R() { gstate = gstate * 10 + n; } }; gstate = 0; for (int i = 1; i < 4; ++i) { R a(i); if (i == 2) continue; gstate += 1; } return gstate; }
double case_201(int n, double d) { struct B2 { int f() { return 1; } int g() { return f(); } }; struct D2 : B2 { int f() { return 2; } }; D2 d2; B2& b = d2; return d2.f() * 100 + b.f() * 10 + d2.g(); }
double case_202(int n, double d) { struct S2 { int size = 3; int values = 4; int copy() const { return size; } int fields[2] = {1, 2}; }; S2 a; S2 b = a; b.size = 9; b.fields[0] = 7; return a.size * 100 + a.copy() * 10 + a.fields[0] + b.values + b.copy(); }
double case_203(int n, double d) { struct M2 { std::vector<int> v; std::pair<std::vector<int>, int> p; std::optional<Point> o; }; M2 a; a.v = {1}; a.p.first = {2}; a.o = Point{3, 4}; M2 b = a; b.v[0] = 9; b.p.first[0] = 9; b.o->x = 9; return a.v[0] * 100 + a.p.first[0] * 10 + a.o->x; }
double case_204(int n, double d) { std::vector<std::pair<int, std::vector<int>>> v; std::pair<int, std::vector<int>> p{1, {2}}; v.push_back(p); p.second[0] = 9; auto w = v; w[0].second[0] = 8; auto q = v[0]; q.second.push_back(1); return v[0].second[0] * 10 + v[0].second.size(); }
double case_205(int n, double d) { auto f = [](std::vector<int> v) { v[0] = 9; return v; }; std::vector<int> a{1, 2}; auto b = f(a); auto g = [](std::vector<int>& v) -> std::vector<int>& { v[1] = 7; return v; }; g(a)[0] = 5; return a[0] * 100 + a[1] * 10 + b[0]; }
double case_206(int n, double d) { auto f = [](std::pair<std::vector<int>, int> p) { p.first[0] = 9; return p.first[0]; }; std::pair<std::vector<int>, int> a{{1}, 2}; f(a); return a.first[0]; }
double case_207(int n, double d) { std::optional<std::vector<int>> o = std::vector<int>{1}; auto v = *o; v[0] = 5; auto& w = *o; w[0] = 7; auto x = o.value(); x[0] = 9; auto y = o.value_or(std::vector<int>{}); y[0] = 3; return (*o)[0]; }
double case_208(int n, double d) { std::vector<int> v{1, 2, 3}; int* p = &v[1]; int* q = &v.front(); p[1] = 9; q[0] = 4; auto it = v.begin() + 1; *it = 5; int& r = *it; r += 1; return v[0] * 100 + v[1] * 10 + v[2]; }
double case_209(int n, double d) { uint32_t a = 4000000000u; uint64_t b = a + a; uint64_t c = uint64_t(a) + a; double e = a * 2; float f = a + 1u; return b + c + e + f; }
double case_210(int n, double d) { uint8_t a = 200; uint16_t b = a * 2; uint32_t c = a << 28; int64_t e = -a; uint64_t f = ~a; return b + c + e + (f >> 40); }
double case_211(int n, double d) { int x = 5; auto g = [x]() mutable { return ++x; }; int a = g(), b = g(); return a * 100 + b * 10 + x; }
double case_212(int n, double d) { int r = 0; for (auto k : {1, 2, 3}) { auto f = [=](int y) { return k * y + n % 2; }; r = r * 10 + f(2); } return r; }
double case_213(int n, double d) { std::vector<std::function<int(int)>> fs; for (auto k : {1, 2, 3}) fs.push_back([=](int y) { return k * y; }); for (auto& p : {Point{1, 2}, Point{3, 4}}) fs.push_back([=](int y) { return p.x * y; }); int r = 0; for (auto& f : fs) r = r * 10 + f(1); return r; }
double case_214(int n, double d) { std::vector<std::function<int()>> fs; int i = 0; while (i < 3) { const int sq = i * i; fs.push_back([sq] { return sq; }); ++i; } return fs[0]() + fs[1]() * 10 + fs[2]() * 100; }
double case_215(int n, double d) { bool a = n > 0, b = d > 1; return (a & b) + (a | b) * 2 + (a ^ b) * 4 + (a && !b) * 8 + (a == b) * 16 + (a > b) * 32 + (a + b) * 64 + -a; }
double case_216(int n, double d) { static const char table[] = {'a', 'b', 'c'}; return table[2] - table[0] + sizeof(table); }
double case_217(int n, double d) { int a = 3; int b = [&] { a++; return a; }() + 1; return a * 10 + b; }
double case_218(int n, double d) { double total = 0; for (const auto x : {0.5f, 0.25f}) total += x; for (double x = 0; x < 1; x += 0.25) total += x; return total; }
double case_219(int n, double d) { int k = 0; for (int i = 0; i < 3; i++) for (int j = 0; j < 3; j++) { if (j == 1) continue; if (i == 2) break; k = k * 2 + j + i; } return k; }
double case_220(int n, double d) { int i = 10; while (i > 0) { i -= 3; if (i < 5) { int i = 100; i++; continue; } } return i; }
double case_221(int n, double d) { unsigned char c = 'a'; c += 200; switch (c) { case 'a' + 200 - 256: return 1; default: return c; } }
double case_222(int n, double d) { int64_t x = 1; x <<= 40; int y = x >> 38; unsigned z = x >> 10; return y + z; }
double case_223(int n, double d) { int a = 1; int& b = a; int& c = b; c = 5; auto f = [&b]() { b++; }; f(); const int& e = c; c = 9; return a * 10 + e; }
double case_224(int n, double d) { auto p = std::make_pair(std::vector<int>{1}, 2); auto& v = p.first; v.push_back(3); auto w = p.first; w[0] = 9; std::vector<int>& u = std::get<0>(p); u[0] = 4; return p.first[0] * 10 + p.first.size(); }
double case_225(int n, double d) { int arr[3] = {1, 2, 3}; int (&r)[3] = arr; r[0] = 9; int* p = arr; auto q = &arr[1]; q[-1] += 1; std::swap(arr[0], arr[2]); return arr[0] * 100 + arr[1] * 10 + arr[2] + p[0]; }
double case_226(int n, double d) { int v = 0; auto f = [&v](auto&& self, int k) -> int { v += k; return k == 0 ? v : self(self, k - 1); }; return f(f, 4); }
double case_227(int n, double d) { struct Node { int v; Node* next; }; Node a{1, nullptr}, b{2, &a}; b.next->v = 7; Node* p = &b; int s = 0; while (p) { s = s * 10 + p->v; p = p->next; } return s; }
double case_228(int n, double d) { std::array<Point, 2> a{{{1, 2}, {3, 4}}}; auto b = a; b[0].x = 9; Point& r = a[1]; r.y = 7; Point c = a[1]; c.y = 0; return a[0].x * 100 + a[1].y * 10 + b[0].x; }
double case_229(int n, double d) { Holder h{{5, 6}, {3, 4}}; Holder g{{7}}; return h.v.size() * 100 + h.v[0] * 10 + h.p.y + g.v[0] * 1000 + g.k; }
double case_230(int n, double d) { struct Q { std::vector<double> v; std::array<int, 2> a; std::string s; std::vector<Point> ps; } q{{1, 2}, {3, 4}, "ab", {{1, 2}, {3, 4}}}; return q.v[1] + q.a[1] * 10 + q.s.size() * 100 + q.ps[1].x * 1000; }
double case_231(int n, double d) { uint32_t a = -1; if (a == -1) return 1; return a > 0 ? 2 : 3; }
double case_232(int n, double d) { auto f = [](int a, int b = 5) { return a * b; }; return f(2) + f(2, 3); }
double case_233(int n, double d) { std::vector<int> v{1, 2, 3}; for (size_t i = 0; i < v.size(); ++i) { if (v[i] == 2) { v.erase(v.begin() + i); --i; } } return v.size() * 10 + v[1]; }
double case_234(int n, double d) { int a[3] = {1, 2, 3}; memset(a, 0, sizeof(int) * 2); int b[3]; memcpy(b, a, sizeof(a)); std::vector<float> v(2, 1.f); std::memset(v.data(), 0, 4); return a[0] + a[2] + b[2] * 10 + v[0] + v[1]; }
double case_235(int n, double d) { int* p = (int*)malloc(3 * sizeof(int)); p[0] = 4; p[2] = 5; int* q = p + 1; q[0] = 6; int r = p[0] * 100 + p[1] * 10 + q[1]; free(p); double* z = static_cast<double*>(calloc(2, sizeof(double))); z[1] += 0.5; r += z[0]; return r + z[1]; }
double case_236(int n, double d) { std::optional<Point> o = Point{1, 2}; Point* p = &o.value(); p->x = 7; std::optional<int> i = 5; int* q = &*i; *q = 9; return o->x * 10 + *i; }
double case_237(int n, double d) { int k = 4; unsigned long long a[k + 1]; k = 0; memset(a, 0, 5 * sizeof(unsigned long long)); a[4] |= 1ULL << 40; unsigned long long* p = a; p[1] = n; return a[4] + double(a[1] == (unsigned long long)n) + sizeof(*a); }
double case_238(int n, double d) { typedef int (*F)(int); struct S { static int up(int x) { return x + 1; } static int down(int x) { return x - 1; } static F pick(bool up_) { return up_ ? up : down; } F get() const { return down; } }; S s; auto add = [](int a) { return [a](int b) { return a + b; }; }; return S::pick(n > 0)(n) * 2.0 + s.get()(5) + add(3)(4); }

// Generic lambdas that other functions call.
template <int N> struct Number_ { static constexpr int value = N; };
template <class F, class... A> auto forwarded(F&& f, A&&... a) { return std::forward<F>(f)(std::forward<A>(a)...); }
template <class F> int called_twice(F f, int n) { auto g = f; return g(Number_<2>{}, n) + f(Number_<3>{}, n); }
template <class F> int called_deep(F f, int n) { return called_twice(f, n) + called_twice(f, 5); }
struct Caller { int base; template <class F> double call(F&& f) const { return f(base) + f(double(base) / 2); } };
template <class F> void for_each_of(std::tuple<int, float, int64_t> t, F&& f) { f(std::get<0>(t)); f(std::get<1>(t)); f(std::get<2>(t)); }
template <class F> int by_size(int n, F f) { if (n < 5) return f(std::integral_constant<int, 4>{}); return f(std::integral_constant<int, 8>{}); }
double case_239(int n, double d) { int seen = 0; auto f = [&](auto tag, int k) { constexpr int N = decltype(tag)::value; seen += N; return N * k; }; int r = called_twice(f, n % 100); return r * 1000.0 + seen + f(Number_<1>{}, 1); }
double case_240(int n, double d) { int count = 0; auto add = [&count](auto v) { ++count; return v + v; }; double r = forwarded(add, d) + forwarded(add, n / 2); return r + count; }
double case_241(int n, double d) { return Caller{n % 1000}.call([n](auto v) { return v / 2 + n; }); }
double case_242(int n, double d) { return called_deep([=](auto t, int k) { return decltype(t)::value * k + n % 10; }, n % 7); }
double case_243(int n, double d) { auto f = [&]<int K>(int v) { return K * v; }; return f.template operator()<3>(n % 100) + f.template operator()<5>(1) + f.operator()<2>(4); }
double case_244(int n, double d) { double s = 0; for_each_of({n, 0.5f, 3}, [&](const auto& v) { s += v; }); return s; }
double case_245(int n, double d) { return by_size(n, [&](auto c) { constexpr int B = decltype(c)::value; return B + c() + c * 2 + n % 3; }); }
double case_246(int n, double d) { auto k = std::integral_constant<int, 7>{}; int v = k; bool t = std::true_type{}; return v + k() + k.value + t + decltype(k)::value; }

// Lambdas that assign to their arguments, and objects and generic lambdas that the library calls.
template <class F> void run_over(F f, std::vector<int>& v) { for (auto& x : v) f(x); }
struct Descending { bool operator()(int a, int b) const { return a > b; } };
struct Multiplied { int k; int operator()(int a) const { return a * k; } };
double case_247(int n, double d) { std::vector<int> v{3, 1, n % 10}; auto g = [](int& x) { x += 1; }; g(v[0]); int y = 5; g(y); g(v[2]); return v[0] * 100 + v[1] * 10 + v[2] + y * 1000; }
double case_248(int n, double d) { std::vector<int> v{3, 1, 2}; run_over([](int& x) { x *= 2; }, v); run_over([&](auto& x) { x *= n % 5; }, v); return v[0] * 100 + v[1] * 10 + v[2]; }
double case_249(int n, double d) { auto swapped = [](float& a, float& b) { float t = a; a = b; b = t; }; float p = 1, q = 2; swapped(p, q); return p * 10 + q; }
double case_250(int n, double d) { int best = -1; auto update = [&](int v, int& out) { if (v > out) out = v; }; for (int i = 0; i < 4; i++) update((i * 3) % 5, best); return best; }
double case_251(int n, double d) { std::vector<std::vector<int>> w(2); std::for_each(w.begin(), w.end(), [](auto& x) { x.push_back(1); }); int a[3] = {1, 2, 3}; std::for_each(a, a + 3, [](int& x) { ++x; }); return w[0].size() + w[1].size() + a[0] * 100 + a[2]; }
double case_252(int n, double d) { double s = 0; auto add = [](auto& sum, auto v) { sum += v; }; add(s, 3); add(s, 0.5); int k = 0; add(k, 2.9); return s + k; }
double case_253(int n, double d) { std::vector<int> v{3, 1, n % 10, 7}; std::sort(v.begin(), v.end(), [](auto a, auto b) { return a > b; }); std::vector<int> u{3, 1, 5}; std::sort(u.begin(), u.end(), Descending()); return v[0] * 1000 + v[3] + u[0] * 10 + u[2]; }
double case_254(int n, double d) { std::vector<double> v{3, 1.5, d > 100 ? 2 : d}; double r = std::accumulate(v.begin(), v.end(), 0.0, [](auto s, auto x) { return s + x * x; }); int t = 0; std::for_each(v.begin(), v.end(), [&](auto x) { t += x; }); return r + t; }
double case_255(int n, double d) { std::vector<std::pair<int, float>> v{{1, 2.f}, {3, 1.f}}; auto it = std::max_element(v.begin(), v.end(), [](const auto& a, const auto& b) { return a.second < b.second; }); return it->first + std::any_of(v.begin(), v.end(), [](auto x) { return x.second > 1.5; }) * 10; }
double case_256(int n, double d) { std::vector<int> v{3, 1, 2}, w(3); std::transform(v.begin(), v.end(), w.begin(), Multiplied{n % 7}); std::function<int(int)> h = Multiplied{3}; return w[0] + w[1] * 10 + w[2] * 100 + h(4) * 1000 + std::count_if(v.begin(), v.end(), [](auto x) { return x < 2.5f; }); }
