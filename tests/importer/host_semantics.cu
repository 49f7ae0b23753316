double case_0(int n, double d) { return n / 2; }
double case_1(int n, double d) { return n % 3; }
double case_2(int n, double d) { return -n / 4 * 4 + n % 4; }
double case_3(int n, double d) { return (n / 2) * 1.0 + n / 2.0; }
double case_4(int n, double d) { return n / -3 + n % -3; }
double case_5(int n, double d) { int64_t a = n; return a / 4 - a % 5; }
double case_6(int n, double d) { unsigned u = n; return u; }
double case_7(int n, double d) { unsigned u = n; return u / 2; }
double case_8(int n, double d) { unsigned u = n; return u - 8; }
double case_9(int n, double d) { unsigned a = 3, b = 5; return a - b; }
double case_10(int n, double d) { unsigned a = 3; int b = -5; return a + b; }
double case_11(int n, double d) { return n < 4u; }
double case_12(int n, double d) { size_t s = 2; return s - 3 > 0; }
double case_13(int n, double d) { uint8_t b = n; return b; }
double case_14(int n, double d) { int8_t b = n; return b; }
double case_15(int n, double d) { int16_t s = n * 3; return s; }
double case_16(int n, double d) { uint16_t s = n; return s; }
double case_17(int n, double d) { uint8_t b = 250; b += 10; return b; }
double case_18(int n, double d) { uint8_t b = 0; b--; return b; }
double case_19(int n, double d) { uint8_t a = 200, b = 100; return a + b; }
double case_20(int n, double d) { uint8_t a = 200, b = 100; uint8_t c = a + b; return c; }
double case_21(int n, double d) { int8_t a = 100; a += 100; return a; }
double case_22(int n, double d) { uint8_t a = 5; return ~a; }
double case_23(int n, double d) { uint8_t a = 5; uint8_t b = ~a; return b; }
double case_24(int n, double d) { uint16_t a = 65535; a++; return a; }
double case_25(int n, double d) { unsigned a = 4294967295u; a += 2; return a; }
double case_26(int n, double d) { uint64_t a = 0; a--; return a == 18446744073709551615ull; }
double case_27(int n, double d) { int64_t a = int64_t(1) << 40; int b = (int)(a + n); return b; }
double case_28(int n, double d) { return (int)d; }
double case_29(int n, double d) { if (d > 1e8) d = 8; return (int)d + (long)(d * 10); }
double case_30(int n, double d) { if (d > 1e8) d = 8; short s = d * 3; return s; }
double case_31(int n, double d) { return (uint8_t)n + (int8_t)(n + 120); }
double case_32(int n, double d) { float f = d; return f; }
double case_33(int n, double d) { float f = 0.1f; return f; }
double case_34(int n, double d) { return 0.1f + 0.2f; }
double case_35(int n, double d) { return 0.1 + 0.2; }
double case_36(int n, double d) { float a = 0.1f; double b = 0.1; return a == b; }
double case_37(int n, double d) { float f = 16777216.0f; f += 1.0f; return f; }
double case_38(int n, double d) { float f = n; return f / 3; }
double case_39(int n, double d) { float f = n; return f / 3.0; }
double case_40(int n, double d) { float a = 1e30f; return a * 1e30f; }
double case_41(int n, double d) { float s = 0; for (int i = 0; i < 10; ++i) s += 0.1f; return s; }
double case_42(int n, double d) { double s = 0; for (int i = 0; i < 10; ++i) s += 0.1f; return s; }
double case_43(int n, double d) { float x = 1.0f / 3; return x * 3 == 1.0f; }
double case_44(int n, double d) { float x = d; x *= 1.1; return x; }
double case_45(int n, double d) { float x = d; x += n; return x; }
double case_46(int n, double d) { int x = 7; x *= 1.5; return x; }
double case_47(int n, double d) { int x = 10; x /= 4; x -= 0.5; return x; }
double case_48(int n, double d) { int x = n; x /= 2.5; return x; }
double case_49(int n, double d) { return 5 / 2 * 2.0 + 5 / 2.0 * 2; }
double case_50(int n, double d) { return 1 < 2 < 3; }
double case_51(int n, double d) { return 3 > 2 > 1; }
double case_52(int n, double d) { return (n > 0) + (n > 5) + (d < 1); }
double case_53(int n, double d) { return !n + !!n + !(d > 1); }
double case_54(int n, double d) { int x = small(n); int y = x++ * 10; y += x; return y; }
double case_55(int n, double d) { int x = small(n); int y = ++x * 10; return y + x; }
double case_56(int n, double d) { int x = 5; int y = x-- - 2; return y * 100 + x; }
double case_57(int n, double d) { int x = 5; int y = --x; return y * 100 + x; }
double case_58(int n, double d) { int a[3] = {1, 2, 3}; int i = 0; a[i++] = 10; a[i++] = 20; return a[0] + a[1] + a[2] + i; }
double case_59(int n, double d) { int x = 1; { int x = 2; x += 5; } return x; }
double case_60(int n, double d) { int s = 0; for (int i = 0; i < 3; ++i) { int s = i; s += 1; } return s; }
double case_61(int n, double d) { int i = 100; for (int i = 0; i < 3; ++i) {} return i; }
double case_62(int n, double d) { int x = n; if (int y = small(x)) { x = y; } else { x = -y - 1; } return x; }
double case_63(int n, double d) { int x = 3; if (true) { int t = x; x = t * 2; { double t = 0.5; x += t * 10; } } return x; }
double case_64(int n, double d) { int s = 0; for (int i = 0; i < 10; ++i) { if (i == 3) continue; if (i == 7) break; s += i; } return s; }
double case_65(int n, double d) { int s = 0; for (int i = 10; i > 0; i -= 3) s = s * 10 + i; return s; }
double case_66(int n, double d) { int s = 0; for (int i = 1; i < 100; i *= 2) s += i; return s; }
double case_67(int n, double d) { int s = 0; for (int i = 128; i > 0; i >>= 1) s = s * 3 + 1; return s; }
double case_68(int n, double d) { int s = 0; for (int i = 128; i > 0; i /= 4) s += i; return s; }
double case_69(int n, double d) { int s = 0; for (int i = 0, j = 10; i < j; ++i, --j) s += i * j; return s; }
double case_70(int n, double d) { int s = 0, i = 0; while (true) { if (++i > 8) break; if (i % 2) continue; s += i; } return s * 10 + i; }
double case_71(int n, double d) { int i = 0; do { i += 3; } while (i < 10); return i; }
double case_72(int n, double d) { int i = 0, s = 0; do { ++i; if (i == 2) continue; s += i; } while (i < 5); return s; }
double case_73(int n, double d) { int i = 20, c = 0; do { c++; } while (i < 10); return c; }
double case_74(int n, double d) { int s = 0; for (int i = 0; i < 4; ++i) for (int j = 0; j < 4; ++j) { if (j > i) break; s += i * 4 + j; } return s; }
double case_75(int n, double d) { int s = 0; for (;;) { s++; if (s > 5) break; } return s; }
double case_76(int n, double d) { int s = 0; for (int i = 0; i < 5; ++i) { i++; s += i; } return s; }
double case_77(int n, double d) { int s = 0; for (unsigned i = 3; i-- > 0;) s = s * 10 + i; return s; }
double case_78(int n, double d) { int s = 0; for (float x = 0; x < 1; x += 0.25f) s++; return s; }
double case_79(int n, double d) { int e = 5, s = 0; for (int i = 0; i < e; ++i) { s += i; e = 4; } return s; }
double case_80(int n, double d) { switch (small(n)) { case 7: return 70; case -7: return -70; case 0: return 1; default: return 2; } }
double case_81(int n, double d) { int r = 0; switch (small(n)) { case 7: r += 1; case 0: r += 10; break; case 3: r += 100; default: r += 1000; } return r; }
double case_82(int n, double d) { int r = 0; switch (small(n)) { default: r += 1; case 0: r += 2; break; case 7: case 3: r += 4; } return r; }
double case_83(int n, double d) { int r = 0; for (int i = 0; i < 5; ++i) { switch (i) { case 1: continue; case 3: r += 100; break; default: r += 1; } r += 10; } return r; }
double case_84(int n, double d) { Mode m = n > 0 ? Mode::On : Mode::Off; switch (m) { case Mode::Off: return 1; case Mode::On: return 2; case Mode::Auto: return 3; } return 4; }
double case_85(int n, double d) { switch (n > 0 ? 1 : 2) { case 1: { int t = 4; return t; } case 2: { int t = 8; return t; } } return 0; }
double case_86(int n, double d) { int a = 1; int& r = a; r = 5; r++; return a; }
double case_87(int n, double d) { int a = 1, b = 2; int& r = a; r = b; b = 7; return a * 10 + r; }
double case_88(int n, double d) { int a = 0; set_to(a, n); return a; }
double case_89(int n, double d) { int a = 0; set_pointer(&a, n); return a; }
double case_90(int n, double d) { int a = 1, b = 2; swap_ints(a, b); return a * 10 + b; }
double case_91(int n, double d) { int a = 1; int* p = &a; *p += 4; int** q = &p; **q *= 2; return a; }
double case_92(int n, double d) { int a = 1, b = 2; int* p = &a; *p = 10; p = &b; *p = 20; return a + b; }
double case_93(int n, double d) { int a[5]; fill_array(a, 5); return sum_pointer(a, 5) + sum_pointer(a + 2, 2); }
double case_94(int n, double d) { int a[4] = {1, 2}; return a[0] + a[1] * 10 + a[2] * 100 + a[3]; }
double case_95(int n, double d) { int a[] = {4, 5, 6}; int* p = a + 1; return p[0] * 10 + p[1] + *(p - 1) + (p - a); }
double case_96(int n, double d) { int a[2][3] = {{1, 2, 3}, {4, 5, 6}}; a[1][0] += 10; return a[1][0] + a[0][2] + sizeof(a) / sizeof(a[0][0]); }
double case_97(int n, double d) { int a[3] = {1, 2, 3}; for (int& x : a) x *= 2; int s = 0; for (auto x : a) s += x; return s; }
double case_98(int n, double d) { int a[4] = {}; int* e = a + 4; int k = 0; for (int* p = a; p != e; ++p) *p = k++; return a[3] * 10 + a[1]; }
double case_99(int n, double d) { const int* p = nullptr; int a = 3; if (!p) p = &a; return p ? *p : -1; }
double case_100(int n, double d) { int a = 1, b = 2; pick(a, b, n > 0) = 9; return a * 10 + b; }
double case_101(int n, double d) { int a = 1, b = 2; (n > 0 ? a : b) = 7; return a * 10 + b; }
double case_102(int n, double d) { Point p = {1, 2}; Point* q = &p; q->x = 5; (*q).y += 3; return p.x * 10 + p.y; }
double case_103(int n, double d) { std::vector<int> v = {1, 2, 3}; change_copy(v); return v[0]; }
double case_104(int n, double d) { std::vector<int> v = {1, 2, 3}; change_ref(v); return v[0] + v.back() + v.size(); }
double case_105(int n, double d) { std::vector<int> v = {1, 2, 3}; std::vector<int> w = v; w[0] = 10; auto& r = v; r[1] = 20; return v[0] + v[1] + w[0]; }
double case_106(int n, double d) { std::vector<int> v; for (int i = 0; i < 5; ++i) v.push_back(i * i); v.pop_back(); return total_of(v) + v.size() * 100; }
double case_107(int n, double d) { std::vector<int> v(4, 3); v.insert(v.begin(), 1); v.insert(v.end(), {7, 8}); v.erase(v.begin() + 1); return v[0] + v[1] * 10 + v.back() * 100 + v.size(); }
double case_108(int n, double d) { std::vector<double> v(3); v[1] = d; v.resize(5, 2.0); return v[0] + v[1] + v[4]; }
double case_109(int n, double d) { std::vector<float> v = {0.1f, 0.2f}; v.push_back(0.3); v.emplace_back(0.7); return v[2] + v[3]; }
double case_110(int n, double d) { std::vector<uint8_t> v = {250}; v[0] += 10; v.push_back(300 & 255); return v[0] * 1000 + v[1]; }
double case_111(int n, double d) { std::vector<std::vector<int>> v(3, std::vector<int>(2, 1)); v[1][0] = 5; auto row = v[1]; row[1] = 9; return v[0][0] + v[1][0] * 10 + v[1][1] * 100; }
double case_112(int n, double d) { std::vector<int> v{3, 1, 2}; std::sort(v.begin(), v.end()); return v[0] * 100 + v[1] * 10 + v[2]; }
double case_113(int n, double d) { std::vector<int> v{3, 1, 2}; std::sort(v.begin(), v.end(), [](int a, int b) { return a > b; }); return v[0] * 100 + v[1] * 10 + v[2]; }
double case_114(int n, double d) { std::vector<int64_t> v{2, 3, 4}; return std::accumulate(v.begin(), v.end(), int64_t(1), std::multiplies<int64_t>()); }
double case_115(int n, double d) { std::vector<double> v{1.5, 2.5, 0.25}; return std::accumulate(v.begin(), v.end(), 0) + std::accumulate(v.begin(), v.end(), 0.0); }
double case_116(int n, double d) { std::vector<int> v{3, 9, 2}; return *std::max_element(v.begin(), v.end()) * 10 + (std::min_element(v.begin(), v.end()) - v.begin()); }
double case_117(int n, double d) { std::vector<int> v{1, 2, 3}; return std::all_of(v.begin(), v.end(), [](int x) { return x > 0; }) * 2 + std::any_of(v.begin(), v.end(), [n](int x) { return x == n; }); }
double case_118(int n, double d) { std::vector<int> v(5); std::iota(v.begin(), v.end(), 2); std::reverse(v.begin(), v.end()); return v[0] * 10 + v[4]; }
double case_119(int n, double d) { std::vector<float> v(3); std::fill(v.begin(), v.end(), 7); return v[0] / 2; }
double case_120(int n, double d) { std::vector<int> v{1, 2, 3}, w(3); std::copy(v.begin(), v.end(), w.begin()); std::transform(v.begin(), v.end(), w.begin(), [](int x) { return x * x; }); return w[2] + std::count(w.begin(), w.end(), 4); }
double case_121(int n, double d) { std::vector<int> v{1, 2, 3}; int s = 0; for (auto it = v.begin(); it != v.end(); ++it) s = s * 10 + *it; for (auto it = v.rbegin(); it != v.rend(); ++it) s = s * 10 + *it; return s; }
double case_122(int n, double d) { std::vector<int> v{4, 5, 6}; int* p = v.data(); p[1] = 50; *v.begin() = 40; v.back() = 60; v.front()++; return v[0] + v[1] + v[2]; }
double case_123(int n, double d) { std::vector<int> v{4, 5, 6}; for (auto& x : v) x += 1; for (auto x : v) x += 100; return total_of(v); }
double case_124(int n, double d) { std::vector<int> v{4, 5}; std::vector<int> w{1}; std::swap(v, w); std::swap(w[0], w[1]); return v.size() * 100 + w[0] * 10 + w[1]; }
double case_125(int n, double d) { std::vector<Point> v; v.push_back({1, 2}); Point p = v[0]; p.x = 100; v[0].y = 7; Point& q = v[0]; q.x = 3; return v[0].x * 10 + v[0].y; }
double case_126(int n, double d) { std::vector<int> v{1, 2, 3}; auto it = std::find(v.begin(), v.end(), 2); return (it != v.end()) * 10 + (std::find(v.begin(), v.end(), n) == v.end()) + *it; }
double case_127(int n, double d) { std::vector<int> v{1, 2}, w{1, 2}; return (v == w) * 10 + v.empty() + (v != w); }
double case_128(int n, double d) { std::array<int, 4> a = {1, 2}; a[3] = 5; auto b = a; b[0] = 9; return a[0] + a[2] * 10 + a[3] * 100 + a.size() * 1000; }
double case_129(int n, double d) { std::array<float, 2> a; a.fill(0.1f); return a[0] + a[1]; }
double case_130(int n, double d) { auto t = three(n, d); return std::get<0>(t) + std::get<1>(t) + std::get<2>(t); }
double case_131(int n, double d) { auto [a, b, c] = three(n, d); return a + b * 10 + c * 100; }
double case_132(int n, double d) { auto [q, r] = div_mod(n, 3); return q * 10 + r; }
double case_133(int n, double d) { int q, r; std::tie(q, r) = div_mod(n, 4); return q * 10 + r; }
double case_134(int n, double d) { int q = 5; std::tie(q, std::ignore) = div_mod(n, 4); return q; }
double case_135(int n, double d) { std::pair<int, float> p(1, 0.1f); p.first += 2; auto c = p; c.first = 50; return p.first + p.second; }
double case_136(int n, double d) { std::tuple<float, int> t = std::make_tuple(0.1, 3); return std::get<0>(t) * std::get<1>(t); }
double case_137(int n, double d) { std::tuple<int, int> t{1, 2}; std::get<0>(t) = 7; return std::get<0>(t) * 10 + std::get<1>(t); }
double case_138(int n, double d) { std::vector<std::pair<int, double>> v = {{1, 0.5}, {2, 1.5}}; double s = 0; for (const auto& [k, x] : v) s += k * x; return s; }
double case_139(int n, double d) { Point p{3, 4}; auto [x, y] = p; x = 10; return p.x * 100 + x + y; }
double case_140(int n, double d) { Point p{3, 4}; auto& [x, y] = p; x = 10; return p.x * 100 + y; }
double case_141(int n, double d) { auto p = std::make_pair(1, 2); auto q = std::make_pair(1, 3); return (p < q) + (p == q) * 2; }
double case_142(int n, double d) { int k = 3; auto f = [k](int x) { return x * k; }; k = 100; return f(n); }
double case_143(int n, double d) { int k = 3; auto f = [&k](int x) { k += x; return k; }; f(2); int r = f(3); return r + k * 10; }
double case_144(int n, double d) { int k = 3; auto f = [=]() mutable { return ++k; }; f(); f(); int r = f(); return r * 10 + k; }
double case_145(int n, double d) { int s = 0; auto add = [&](auto x) { s += x; }; add(2); add(d > 1e8 ? 1.5 : d); return s; }
double case_146(int n, double d) { auto f = [](int a, double b) -> int { return a + b; }; return f(1, 2.7); }
double case_147(int n, double d) { auto f = [x = n * 2, y = 0.5](double z) { return x * y + z; }; return f(d); }
double case_148(int n, double d) { std::function<int(int)> f = make_adder(5); auto g = f; f = make_adder(10); return f(n) - g(n) * 2 + (f ? 1 : 0); }
double case_149(int n, double d) { std::function<int(int)> fact = [&](int k) { return k <= 1 ? 1 : k * fact(k - 1); }; return fact(5); }
double case_150(int n, double d) { return apply_to([](int x) { return x + 3; }, n) + apply_to(small, n); }
double case_151(int n, double d) { return call_pointer(small, n) + call_pointer([](int x) { return -x; }, 4) + call_pointer(&outer::twice, 1); }
double case_152(int n, double d) { int total = 0; auto outer_f = [&]() { int local = 2; auto inner_f = [&]() { local *= 3; total += local; }; inner_f(); inner_f(); }; outer_f(); return total; }
double case_153(int n, double d) { std::vector<std::function<int()>> fs; for (int i = 0; i < 3; ++i) fs.push_back([i]() { return i * i; }); int s = 0; for (auto& f : fs) s = s * 10 + f(); return s; }
double case_154(int n, double d) { std::vector<int> v{1, 2}; auto f = [v]() mutable { v.push_back(3); return v.size(); }; f(); int r = f(); return r * 10 + v.size(); }
double case_155(int n, double d) { return [&] { if (n > 0) return 1; return 2; }() + 0.5; }
double case_156(int n, double d) { return add_one(n % 1000) + add_one(0.5) + add_one<uint8_t>(255); }
double case_157(int n, double d) { return half_of(n) + half_of((double)n) + half_of<float>(3); }
double case_158(int n, double d) { return times<3>(small(n)) + times<-kDouble>(2); }
double case_159(int n, double d) { return sum_n(small(n)) + sum_n<float, 10>(0.1f) + sum_n<double, 10>(0.1); }
double case_160(int n, double d) { return mixed_sum(1, 0.5) + mixed_sum(1u, -2) + mixed_sum('a', 1); }
double case_161(int n, double d) { return signed_by<true>(n) + signed_by<false>(n) * 2; }
double case_162(int n, double d) { return kind_of(1.f) * 100 + kind_of(int64_t(1)) * 10 + kind_of(1); }
double case_163(int n, double d) { return std::string(type_name<float>()).size() * 100 + std::string(type_name<int>()).size() * 10 + std::string(type_name<double>()).size(); }
double case_164(int n, double d) { return count_args() + count_args(1, 2.0, "x") + fold_sum(1, 2.5, 3) + fold_all(1, 0.5, 2u); }
double case_165(int n, double d) { Box<int> b{5}; Box<double> c{0.25}; Box<uint8_t> e{200}; return b.twice() + c.twice() + e.twice(); }
double case_166(int n, double d) { Fixed<4> f; return Fixed<3>::value * 10 + f.size() + f.arr[2] + Fixed<kBase>::value; }
double case_167(int n, double d) { return overloaded(1) + overloaded(1.5) * 10 + overloaded(int64_t(1)) * 100 + overloaded("x") * 1000 + overloaded(std::string("x")) * 10000 + overloaded(1.f) * 100000 + overloaded('c') * 1000000 + overloaded(true) * 10000000; }
double case_168(int n, double d) { return with_default(1) + with_default(1, 2) * 2 + with_default(1, 2, 3) * 3; }
double case_169(int n, double d) { Vec2 a, b(2, 3); return a.dot(b) + Vec2::unit().dot(a); }
double case_170(int n, double d) { Vec2 a(1, 2), b(3, 4); Vec2 c = a + b; c += a; return c.x * 10 + c.y + (-c).x; }
double case_171(int n, double d) { Vec2 a(0.1f, 0.2f); Vec2 b = 3 * a; return b.x + b.y; }
double case_172(int n, double d) { Vec2 a(1, 2); Vec2 b = a; b.scale(5); return a.x + b.x * 10 + (a == b) + (a < b) * 2 + (a == Vec2(1, 2)) * 4; }
double case_173(int n, double d) { Vec2 a(1, 2); a[0] = 8; a[1] += 1; return a.x * 10 + a.y; }
double case_174(int n, double d) { Counter c; c.next(); c.next(); Counter e(1); e(5); return c.count * 100 + e.next(); }
double case_175(int n, double d) { Counter c(1); c.add(2).add(3); Counter k = c; k.add(100); return c.count; }
double case_176(int n, double d) { Config c; return c.blocks(1000) + Config::kThreads + Config::kEps; }
double case_177(int n, double d) { Derived x; x.a = 5; Base b = x; b.a = 9; return x.both() + b.get(); }
double case_178(int n, double d) { Nested a; a.p = {1, 2}; Nested b = a; b.p.x = 50; b.data[0] = 70; b.v.x = 9; return a.p.x + a.data[0] * 10 + a.v.x * 100 + b.p.x + b.data[0]; }
double case_179(int n, double d) { Point p = make_point(3); change_point(p); int first = p.x; change_point_ref(p); change_point_ptr(&p); return first + p.x * 10 + p.y; }
double case_180(int n, double d) { Point p = {}; Point q{4}; p = q; q.x = 5; return p.x * 10 + p.y + q.x; }
double case_181(int n, double d) { Point a[2] = {{1, 2}, {3, 4}}; Point& r = a[1]; r.x = 30; Point c = a[0]; c.y = 100; return a[0].y + a[1].x; }
double case_182(int n, double d) { return n > 0 ? 1 : n < 0 ? -1 : 0; }
double case_183(int n, double d) { return n > 0 ? 1 : 0.5; }
double case_184(int n, double d) { return (n > 0 ? 1 : 2u) - 3 > 0; }
double case_185(int n, double d) { int a = n > 100 ? n : 100, b = (n > 0 ? 5 : 6) + 1; return a + b; }
double case_186(int n, double d) { int a = (calls = 0, count_call(3), count_call(4)); return a * 10 + calls; }
double case_187(int n, double d) { int i = 0, j = 0; i = 3, j = 4; return i * 10 + j; }
double case_188(int n, double d) { int log = 0; bool r = note(log, 0, n > 0) && note(log, 1, true) || note(log, 2, false); return log * 10 + r; }
double case_189(int n, double d) { int log = 0; if (note(log, 0, true) || note(log, 1, true)) log |= 16; return log; }
double case_190(int n, double d) { return (n & 6) + (n | 1) + (n ^ 3) + (~n); }
double case_191(int n, double d) { return (5 & 3) == 1 ? 1 : (6 | 1) + (7 ^ 2); }
double case_192(int n, double d) { int m = small(n) < 0 ? 3 : small(n); return (1 << m) + (1024 >> m); }
double case_193(int n, double d) { return -16 >> 2; }
double case_194(int n, double d) { unsigned u = n; return (u >> 28) + (u << 30); }
double case_195(int n, double d) { uint8_t b = 200; return (b << 1) + (b >> 1); }
double case_196(int n, double d) { uint32_t h = 2166136261u; h ^= 97u; h *= 16777619u; return h; }
double case_197(int n, double d) { uint64_t h = 1469598103934665603ull; h = (h ^ 97) * 1099511628211ull; return h >> 40; }
double case_198(int n, double d) { uint32_t x = 123456789; x ^= x << 13; x ^= x >> 17; x ^= x << 5; return x; }
double case_199(int n, double d) { int x = 12; x <<= 2; x |= 1; x &= ~8; x ^= 0xF0; x >>= 1; x %= 50; return x; }
double case_200(int n, double d) { return 0x1F + 010 + 0b101 + 1'000; }
double case_201(int n, double d) { return 'a' + 'b' - '0'; }
double case_202(int n, double d) { return (int)Mode::On + static_cast<int>(Mode::Auto) + (n > 0 ? GREEN : BLUE); }
double case_203(int n, double d) { Color c = RED; int i = c + GREEN; c = static_cast<Color>(2); return i * 10 + (c == GREEN) + (Mode::On == Mode(5)); }
double case_204(int n, double d) { return (int)Tiny::B + static_cast<uint8_t>(static_cast<int>(Tiny::A) + 10); }
double case_205(int n, double d) { return outer::twice(n % 100) + outer::inner::thrice(2) + alias_ns::thrice(1) + hidden(3); }
double case_206(int n, double d) { using namespace outer; using inner::thrice; return twice(3) + thrice(1) + v; }
double case_207(int n, double d) { return kDouble + kScale + kBig / 1024 + kTable[2] + kTable[n & 3]; }
double case_208(int n, double d) { constexpr int a = kBase / 5; constexpr float b = a * 0.1f; const auto c = b + a; return c; }
double case_209(int n, double d) { return SQUARE(n % 100 + 1) + RAW_TWICE(1 + 2) + CEIL_DIV(n % 1000, 32); }
double case_210(int n, double d) { int JOIN(val, ue) = 5; int s = 0; LOOP_SUM(s, 1, 5) return value + s + std::string(NAME(a + b)).size(); }
double case_211(int n, double d) { std::string s = "abc"; s += "de"; s = s + "f" + std::to_string(n); return s.size() * 10 + (s == "abcdef7") + s.find("d"); }
double case_212(int n, double d) { std::string s = "hello"; return s.substr(1, 3) == "ell" ? s[0] : s.find("z") == std::string::npos; }
double case_213(int n, double d) { std::string a = "x", b = a; b += "y"; a.push_back('z'); return a.size() * 10 + b.size() + (a != b) + (a < b) * 100; }
double case_214(int n, double d) { std::ostringstream s; s << "n=" << n << ' ' << 1.5f << true << 'c' << std::string("q"); return s.str().size(); }
double case_215(int n, double d) { std::ostringstream s; s << d; return std::stod(s.str()); }
double case_216(int n, double d) { return std::to_string(d > 1e8 ? 1.0 : d).size() + std::stoi("42"); }
double case_217(int n, double d) { auto o = positive(n); return o ? *o : -1; }
double case_218(int n, double d) { auto o = positive(n); return o.has_value() * 10 + o.value_or(3); }
double case_219(int n, double d) { std::optional<double> o; double r = o.has_value(); o = d; r += o.value(); o.reset(); return r + (o == std::nullopt); }
double case_220(int n, double d) { std::optional<int> o = 5; *o += 2; auto p = o; p = 1; return o.value() * 10 + *p; }
double case_221(int n, double d) { std::optional<std::vector<int>> o; if (!o) o = std::vector<int>{1, 2}; o->push_back(3); return o->size(); }
double case_222(int n, double d) { return std::max(n, 3) + std::min<int64_t>(n, 4) + std::max(d, 0.25) + std::max({1, n, 2}) + std::min({5, 3}); }
double case_223(int n, double d) { return std::abs(n) + std::abs(d) + std::fabs(n) + std::abs(-3.5f); }
double case_224(int n, double d) { return std::sqrt(std::abs(n)) + std::sqrt(2.f) + sqrtf(2.f) + sqrt(2); }
double case_225(int n, double d) { return std::pow(2, small(n)) + std::pow(2.f, 0.5f) + std::pow(d, 2) + powf(1.1f, 3.f); }
double case_226(int n, double d) { return std::ceil(d) + std::floor(d) * 2 + std::round(d) * 4 + std::trunc(d) * 8; }
double case_227(int n, double d) { return std::round(-2.5) + std::round(2.5f) + std::rint(2.5) + std::lround(0.5) + std::nearbyint(3.5); }
double case_228(int n, double d) { return std::floor(n / 2) + std::ceil(n / 2) + std::ceil(n / 2.0) + std::ceil((float)n / 3); }
double case_229(int n, double d) { return std::fmod(n, 3) + std::fmod(d, 0.7) + std::fmin(d, 1) + std::fmax(d, n); }
double case_230(int n, double d) { return std::exp(-std::abs(small(n))) + std::log2(1024) + std::log(std::abs(d)) + std::tanh(d) + std::exp(1.f); }
double case_231(int n, double d) { return std::isnan(NAN) + std::isinf(d / 0.0) * 2 + std::isinf(-INFINITY) * 4 + std::isfinite(d) * 8; }
double case_232(int n, double d) { double z = 0.0; return 1 / z; }
double case_233(int n, double d) { double z = 0.0; return n / z; }
double case_234(int n, double d) { float z = 0; return d / z - d / z; }
double case_235(int n, double d) { return NAN != NAN; }
double case_236(int n, double d) { return std::numeric_limits<float>::max() + (double)FLT_MIN + std::numeric_limits<int>::max() + INT_MIN + std::numeric_limits<uint8_t>::max(); }
double case_237(int n, double d) { return -std::numeric_limits<float>::infinity(); }
double case_238(int n, double d) { return std::numeric_limits<int64_t>::max() == INT64_MAX && std::numeric_limits<float>::lowest() == -FLT_MAX; }
double case_239(int n, double d) { return sizeof(float) + sizeof(double) * 2 + sizeof(int64_t) + sizeof(Point) + sizeof(char) + 6 * sizeof(n); }
double case_240(int n, double d) { size_t shared = 3 * sizeof(float) + (n > 0 ? n % 100 : 0) * sizeof(double); return shared; }
double case_241(int n, double d) { return factorial(6) + fib(10) + is_even(8) * 1000 + next_power(n % 1000); }
double case_242(int n, double d) { return narrow(int64_t(n) + (int64_t(1) << 32)) + to_byte(n) + as_float(0.1) + area(2); }
double case_243(int n, double d) { static int counter = 0; counter = 0; counter += 2; return counter; }
double case_244(int n, double d) { std::map<int, int> m; m[3] = 4; m[1]++; m[3] += 2; int s = 0; for (auto& kv : m) s = s * 100 + kv.first * 10 + kv.second; return s + m.size() + m.count(7); }
double case_245(int n, double d) { std::unordered_map<std::string, int> m = {{"a", 1}, {"b", 2}}; auto it = m.find("b"); int r = it != m.end() ? it->second : -1; return r * 10 + (m.find("z") == m.end()) + m.at("a"); }
double case_246(int n, double d) { std::set<int> s = {5, 1, 5}; s.insert(3); int r = 0; for (int x : s) r = r * 10 + x; return r * 10 + s.count(5) + s.size(); }
double case_247(int n, double d) { try { if (n > 0) throw std::runtime_error("bad " + std::to_string(n)); return 1; } catch (const std::runtime_error& e) { return std::string(e.what()).size() + 100; } }
double case_248(int n, double d) { int r = 0; try { try { throw std::invalid_argument("x"); } catch (const std::runtime_error&) { r = 1; } } catch (const std::exception& e) { r = 2; } return r; }
double case_249(int n, double d) { int r = 0; try { std::vector<int> v(2); v.at(5) = 1; r = 1; } catch (const std::out_of_range&) { r = 3; } catch (...) { r = 4; } return r; }
double case_250(int n, double d) { auto p = std::make_unique<Point>(Point{1, 2}); p->x = 8; auto q = std::make_shared<int>(5); *q += 1; auto r = q; *r += 1; return p->x * 10 + *q + (p ? 100 : 0); }
double case_251(int n, double d) { int* p = new int[3]; p[0] = 1; p[1] = 2; p[2] = p[0] + p[1]; int s = p[2]; delete[] p; return s; }
double case_252(int n, double d) { bool b = 5; int i = b + true; b = 0.5; return i * 10 + b; }
double case_253(int n, double d) { bool any = false; for (int i = 0; i < 4; ++i) any |= (i == n); any &= true; return any; }
double case_254(int n, double d) { char c = 200; signed char s = c; unsigned char u = c; return c + s + u; }
double case_255(int n, double d) { long long x = n; x = x * x * 3; return x % 1000003; }
double case_256(int n, double d) { int64_t a = 3000000000; int b = 5; return a * b + a / b + a % b; }
double case_257(int n, double d) { int64_t big = int64_t(n) * n; int lost = big; return lost == big; }
double case_258(int n, double d) { return int64_t(n) * 1000000 / 7; }
double case_259(int n, double d) { return (float)(n) / 2 + (int)(float)16777217; }
double case_260(int n, double d) { return float(n) * 0.1f + float(d) * 0.1; }
double case_261(int n, double d) { double a = d; a += 1; a++; --a; a /= 3; return a; }
double case_262(int n, double d) { float f = d; f++; f -= 0.1f; return f; }
double case_263(int n, double d) { return d > 0 && n > 0 || d < 0 && n < 0; }
double case_264(int n, double d) { int x = 5; x = x++ + 1; return x; }
double case_265(int n, double d) { int a, b, c; a = b = c = n; return a + b + c; }
double case_266(int n, double d) { int x = 3; int y = (x = 4) + 1; return x * 10 + y; }
double case_267(int n, double d) { int x = 3; x += x -= 1; return x; }
double case_268(int n, double d) { int i = 0; int s = 0; while (i < 5) s += i++; return s; }
double case_269(int n, double d) { int i = 5; int s = 0; while (i --> 0) s += i; return s; }
double case_270(int n, double d) { if (n > 0) if (n > 100) return 1; else return 2; return 3; }
double case_271(int n, double d) { if (auto o = positive(n); o && *o > 10) return *o; else if (o) return -*o; return 0.25; }
double case_272(int n, double d) { const auto f = static_cast<float>(d); const auto i = static_cast<int>(f > 1e8f ? 3 : f); return f + i; }
double case_273(int n, double d) { auto x = 5 / 2; auto y = 5 / 2.f; auto z = 1u; decltype(d) w = x; return x + y + z + w; }
double case_274(int n, double d) { typedef unsigned char byte_t; using word_t = uint16_t; byte_t b = 300 - 1; word_t w = b * 300; return b + w; }
double case_275(int n, double d) { const char* s = n > 0 ? "positive" : "no"; return std::string(s).length(); }
double case_276(int n, double d) { return std::clamp(n, -5, 5) + std::gcd(12, 18) + std::is_same_v<int, float> + std::is_integral<long>::value; }
