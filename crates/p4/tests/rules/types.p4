//// accepted headers, unions, stacks, structs, tuples, lists
enum bit<8> Kind { A = 1, B = 2 }
type bit<9> Port;
struct Inner { bit<8> a; Kind k; }
header H { bit<8> a; int<8> b; bool c; varbit<16> d; Inner i; Port p; Kind k; }
header K { bit<8> a; }
header_union U { H h; K k; }
struct Holder<T> { T t; }
struct S { H[4] hs; U u; tuple<H, bit<8>> t; error e; Holder<bit<8>> g; }
//// rejected types behind their use
struct S { T t; }
struct T { bit<8> a; }
//// rejected the nearest type is named
header ethernet_t { bit<8> a; }
struct S { etherne_t e; }
//// rejected fields that headers cannot have
header K { bit<8> a; }
header H { K k; int i; string s; tuple<bit<8>> t; error e; }
//// rejected fields that unions cannot have
header_union U { bit<8> a; }
//// rejected fields of no size
struct S { int a; void v; }
//// rejected fields after specialization
header H<T> { T t; }
header K { bit<8> a; }
const H<K> h = {#};
//// rejected type arguments in wrong number
struct S<T> { T t; }
const S<bool, bool> s = { true };
struct R { S s; }
//// rejected fields and members twice
struct S { bit<8> a; bit<8> a; }
enum E { A, A }
error { Twice, Twice }
match_kind { exact, exact }
//// rejected sizes that are not known or too large
control c(in bit<8> n) { apply { bit<(n)> a; bit<(-1)> b; int<0> d; bit<100000> e; } }
//// rejected new types of structs
struct S { bit<8> a; }
type S T;
//// rejected values of enumerations
enum int E { A = 1 }
enum bit<4> F { A = 16 }
control c(in bit<4> n) { apply {} }
//// rejected names twice
const int a = 1;
const int a = 2;
struct S {}
header S {}
//// rejected objects as fields
extern e { e(); }
struct S { e o; }
//// rejected `_` where nothing is inferred
struct S<T> { T t; }
const S<_> s = { 1 };
//// rejected values as types
const int a = 1;
const a b = 1;
