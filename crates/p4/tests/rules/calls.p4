//// accepted inference, named and optional arguments, overloads
extern void first<T>(in T a, out T b);
extern void many(in bit<8> a, in bit<8> b = 3);
extern void many(in bit<8> a, in bit<8> b, in bit<8> c);
extern void maybe(in bit<8> a, @optional in bit<8> b);
bit<8> same<T>(in T a, in bit<8> b) { return b; }
control c(inout bit<8> x) {
    apply {
        first(5, x);
        first<bit<8>>(a = 1, b = x);
        first({ x, true }, _);
        many(1);
        many(b = 1, a = 2);
        many(1, 2, 3);
        maybe(1);
        x = same({ x, x }, 1) + same<bool>(true, 2);
    }
}
//// rejected arguments that do not match
extern void f(in bit<8> a, in bool b);
control c(inout bit<8> x) { apply { f(1); f(1, 2); f(1, true, 3); f(a = 1, c = true); f(1, b = true); f(b = true, b = true); } }
//// rejected values where variables are written
extern void f(inout bit<8> a);
control c(in bit<8> x) { apply { f(1); f(x); f(x + 1); } }
//// rejected variables of other types
extern void f(inout bit<8> a);
control c(inout bit<9> x) { apply { f(x); } }
//// rejected type arguments
extern T none<T>();
extern void f<T>(in T a, in T b);
control c(inout bit<8> x) { apply { x = none(); f(x, true); f<bool, bool>(true, true); f<bool>(x, x); f({ a = 1 }, { a = 2 }); } }
//// rejected ambiguous and missing overloads
extern void f(in bit<8> a);
extern void f(in bit<9> b);
control c(inout bit<8> x) { apply { f(x); f(); } }
//// rejected names that are no functions
const int limit = 1;
control c() { apply { limit(); unknown(); c(); } }
//// rejected functions that do not return
bit<8> f(in bool a) { if (a) { return 1; } }
bit<8> g() { return; }
void h() { return 1; }
bit<8> i() { return true; }
//// rejected parameters twice, and default values
void f(in bit<8> a, in bit<8> a) {}
void g(out bit<8> a = 1) {}
void h(in bit<8> a = true) {}
//// rejected parameters without values when packets run
void f(in int a) {}
void g(in string a) {}
//// rejected actions from functions, and wrong directions of actions
action a(in bit<8> x, bit<8> y) {}
action b(bit<8> y, in bit<8> x) {}
void f() { a(1, 2); }
//// rejected functions that exist with these parameters
void f(in bit<8> a) {}
void f(in bit<8> a) {}
//// rejected static assertions that fail
#include <core.p4>
const bit<8> size = 3;
const bool fine = static_assert(size == 3);
const bool wrong = static_assert(size == 4, "size has to be 4");
//// rejected recursion
void f() { f(); }
