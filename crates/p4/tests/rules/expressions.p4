//// accepted constants of any size, saturation, slices, concatenation
const int big = (1 << 200) - 1;
const bit<8> a = 8w250 |+| 10;
const int<8> b = 8s100 |+| 8s100;
const bit<4> c = a[7:4];
const bit<16> d = a ++ 8w1;
const bit<(a[0:0] == 1 ? 3 : 4)> e = 1;
const bool f = big > 0 && d == 0xff01 && !(a != 255);
const string g = "a" ++ "b";
const bit<8> h = (bit<8>) (int<8>) 8w255 >> 8w1;
const bit<8> i = a[0+:4] ++ 4w0;
//// accepted implicit casts
enum bit<8> Kind { A = 1 }
struct S { bit<8> a; bool b; }
header H { bit<8> a; }
type bit<8> Port;
const bit<8> a = Kind.A + 1;
const S s = { 1, true };
const S t = { b = false, a = 2 };
const S u = { a = 3, ... };
const S v = ...;
const H h = {#};
const tuple<bit<8>, S> w = { 1, { 2, true } };
const list<S> x = { { 1, true }, { 2, false } };
const Port p = (Port) 5;
const bool q = s == t && w[1].b;
//// rejected operands
const bool a = 1 && true;
const bit<8> b = 8w1 + 9w1;
const bit<8> c = 8w1 + true;
const bit<8> d = ~1;
const bool e = !8w1;
const bit<8> f = -true;
const bit<8> g = 8w1 << 8s1;
const bit<8> h = 8w1 << -1;
const int i = 1 |+| 2;
const bool j = 8w1 < 8s1;
const string k = "a" ++ 8w1;
const bool l = 8w1 == 9w1;
const bool m = error.None == 1;
const bool n = { 1, 2 } == { 1, 2 };
//// rejected division
const int a = 1 / 0;
const bit<8> b = 8w1 % 0;
const int c = -1 / 2;
const int<8> d = 8s4 / 8s2;
//// rejected numbers without limit
const int a = 1 << 100000;
//// rejected slices
const bit<8> a = 255;
const bit<4> b = a[8:5];
const bit<4> c = a[3:4];
const bit<1> d = true[0:0];
control x(in bit<8> n) { apply { bit<4> e = a[n:0]; } }
//// rejected indexes
header H { bit<8> a; }
const tuple<bit<8>, bool> t = { 1, true };
const bool a = t[2];
control c(inout H[2] hs, in bit<8> n) { apply { hs[2] = hs[0]; bool b = t[n]; bit<8> x = n[1]; hs[true].a = 1; } }
//// rejected members, and the nearest is named
enum Kind { Alpha, Beta }
struct S { bit<8> destination; }
control c(inout S s) { apply { s.destinaton = 1; bool a = Kind.Alpa == Kind.Beta; error e = error.Unheard; bool b = s.isValid(); } }
//// rejected names that are nothing
const bit<8> LIMIT = 1;
const bit<8> a = LIMT;
const bit<8> b = .LIMITS;
//// rejected assignments of wrong types
struct S { bit<8> a; bool b; }
const S a = { 1 };
const S b = { 1, 2 };
const S c = { a = 1, c = true };
const S d = { a = 1, a = 2 };
const bit<8> e = true;
const bit<8> f = 9w1;
const bool g = 1;
const tuple<bool> h = { true, true };
//// rejected casts
struct S { bit<8> a; }
const bool a = (bool) 2;
const bool b = (bool) 8w1;
const int<8> c = (int<8>) 9w1;
const S d = (S) 8w1;
const string e = (string) 1;
//// rejected branches of different types
const bit<8> a = true ? 8w1 : 9w1;
//// rejected reads of types and functions
bit<8> f() { return 1; }
struct S {}
const bit<8> a = f;
const bit<8> b = f().x;
//// rejected constants that are not known
control c(in bit<8> n) { apply { const bit<8> a = n; } }
