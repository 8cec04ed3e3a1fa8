//// accepted loops, switches, compound assignments
control c(inout bit<8> a, in bit<16> b) {
    apply {
        a += 1; a |+|= 2; a <<= 3; a >>= 1; a[3:0] = 5;
        for (bit<8> i = 0, bit<8> j = 5; i < j; i += 1, j -= 1) { if (i == 3) { continue; } else { break; } }
        for (bit<8> i in 1 .. 5) { a = i; }
        for (bit<8> i in (list<bit<8>>) { 1, 2 }) { a = i; }
        switch (a) { 1: 2: { a = 3; } default: { a = 4; } }
        { bit<8> a2 = a; }
    }
}
//// rejected writes to what cannot be written
const bit<8> limit = 1;
control c(in bit<8> a) { apply { a = 1; limit = 2; 3 = 4; a + 1 = 2; a[3:0] = 1; } }
//// rejected conditions that are no booleans
control c(in bit<8> a) { apply { if (a) {} for (; a; ) {} } }
//// rejected `break` outside of loops
control c() { apply { break; continue; } }
//// rejected switches
control c(in bit<8> a, in varbit<8> v) {
    apply { switch (a) { 1: {} 1: {} true: {} a: {} default: {} 2: {} } switch (v) { default: {} } }
}
//// rejected cases that are no actions of the table
#include <core.p4>
control c(in bit<8> a) {
    action drop() {}
    table t { key = { a: exact; } actions = { drop; NoAction; } }
    apply { switch (t.apply().action_run) { dorp: {} drop: {} drop: {} } }
}
//// rejected loops over what has no elements
control c(in bit<8> a, in bool b) { apply { for (bit<8> i in a) {} for (bit<8> i in (list<bool>) { b }) {} } }
//// rejected returns
control c(in bit<8> a) { apply { return a; } }
void f() { exit; }
//// rejected instances of packages and parsers in controls
parser p() { state start { transition accept; } }
package k();
control c() { p() inner; k() pack; apply { inner.apply(); } }
//// rejected switches in actions
control c(in bit<8> a) {
    action act() { switch (a) { 1: {} default: {} } }
    apply { act(); }
}
