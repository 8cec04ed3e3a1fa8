//// accepted numbers of all bases and widths
const bit<8> a = 8w0xF_F;
const int<8> b = 8s0b111_1;
const bit<6> c = 0o17;
const int d = 0d19 + 1_000;
//// accepted keywords of some places are names elsewhere
struct key { bit<8> apply; bit<8> state; }
const bit<8> actions = 1;
const bit<8> entries = actions;
const bit<8> type = entries;
const bit<8> priority = type;
const key list = { apply = 1, state = 2 };
//// accepted less-than and type arguments
bit<8> f<T>(in T a) { return 1; }
bool g(in bit<8> a, in bit<8> b) { return a < b; }
bool h(in bit<8> a, in bit<8> b) { return f<bit<8>>(a) < b && (a < b) && f<tuple<bit<8>, bool>>({ a, true }) >> 1 > 0; }
//// accepted casts and parentheses
typedef bit<8> T;
const bit<8> v = 3;
const bit<8> a = (T) - 1;
const bit<8> b = (v) - 1;
const bit<8> c = (bit<8>) (v + 1);
//// accepted optional commas and semicolons
enum E { A, B, };
;
const tuple<bit<8>, bool> t = { 1, true, };
//// rejected several errors in one run
const bit<8> a = ;
const bit<8> b = 1;
struct S { bit<8 x; }
const bit<8> c = d;
//// rejected names that are keywords
const bit<8> table = 1;
//// rejected numbers that are none
const int a = 12x;
//// rejected widths without limit
const bit<8> a = 99999999w1;
//// rejected strings without an end
const string a = "abc;
//// rejected stray characters
const int a = 1 $ 2;
//// rejected variables outside of parsers and controls
bit<8> global;
//// rejected declarations as branches
void f(in bool a) { if (a) bit<8> x = 1; }
//// rejected `...` in the middle of a list
struct S { bit<8> a; bit<8> b; bit<8> c; }
const S s = { 1, ..., 2 };
//// rejected declarations behind states
parser p() { state start { transition accept; } const bit<8> a = 1; }
//// rejected controls without `apply`
control c() { action a() {} }
//// rejected members without values
enum bit<8> E { A, B }
//// rejected instances without names
extern e { e(); }
control c() { apply { e(); } }
