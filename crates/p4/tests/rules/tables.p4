//// accepted keys, actions, entries, priorities, sizes
#include <core.p4>
control c(inout bit<8> a, inout bit<16> b) {
    action set(in bit<8> x, bit<8> y) { a = x + y; }
    action other() {}
    table t {
        key = { a: exact; b: ternary; a + 1: lpm @name("sum"); }
        actions = { set(a); other; @defaultonly NoAction; }
        default_action = set(a, 3);
        largest_priority_wins = false;
        priority_delta = 10;
        entries = {
            priority = 10: (1, 2 &&& 3, 0x80 &&& 0xC0): set(a, 1);
            (1, _, 5): other();
            const (2, 3, default): set(4);
        }
        size = 100;
    }
    apply { if (t.apply().hit) { switch (t.apply().action_run) { set: other: {} default: { return; } } } }
}
//// rejected tables without actions
control c() { table t { key = {} } apply {} }
//// rejected match kinds and keys
match_kind { exact, lpm }
struct S { bit<8> a; }
control c(in S s) { table t { key = { s: exact; s.a: exacd; true: lpm; s.a + 1: exact; } actions = {} } apply {} }
//// rejected actions of a list
#include <core.p4>
control c(inout bit<8> a) {
    action set(inout bit<8> x, bit<8> y) {}
    table t { key = { a: exact; } actions = { set; set(a); unknown; a; NoActoin; } }
    apply {}
}
//// rejected default actions
#include <core.p4>
control c(inout bit<8> a, inout bit<8> b) {
    action set(inout bit<8> x, bit<8> y) {}
    action other() {}
    table t { actions = { set(a); @tableonly NoAction; } default_action = set(b, 1); }
    table u { actions = { set(a); } default_action = other; }
    table v { actions = { @tableonly NoAction; } default_action = NoAction; }
    table w { actions = { set(a); } default_action = set(a); }
    apply {}
}
//// rejected entries
#include <core.p4>
control c(inout bit<8> a, inout bit<8> b) {
    action set(bit<8> y) {}
    table t {
        key = { a: exact; b: ternary; }
        actions = { set; @defaultonly NoAction; }
        const entries = {
            (1, 2, 3): set(1);
            (_, 1): set(1);
            (1 &&& 1, 1): set(1);
            (1, 1 .. 2): set(1);
            (a, 1): set(1);
            (1, 1): set();
            (1, 1): NoAction();
            (1, true): set(1);
            priority = 3: (1, 1): set(1);
        }
    }
    table u { actions = { set; } const entries = { 1: set(1); } }
    table v { key = { a: exact; } actions = { set; } const entries = { 1: set(1); 1: set(2); } }
    table w { key = { a: lpm; } actions = { set; } const entries = { 1 &&& 0x81: set(1); } }
    apply {}
}
//// rejected priorities
#include <core.p4>
control c(inout bit<8> a) {
    table t { key = { a: ternary; } actions = { NoAction; } entries = { 1: NoAction(); priority = 3: 2: NoAction(); } }
    table u {
        key = { a: ternary; } actions = { NoAction; } largest_priority_wins = 1; priority_delta = 0;
        entries = { priority = 1: 1: NoAction(); 2: NoAction(); 3: NoAction(); }
    }
    apply {}
}
//// rejected the order of properties, and properties twice
#include <core.p4>
control c(inout bit<8> a) {
    table t { default_action = NoAction; actions = { NoAction; } key = { a: exact; } size = 1; size = 2; }
    apply {}
}
//// rejected tables in actions, and members of results
#include <core.p4>
control c(inout bit<8> a) {
    table t { key = { a: exact; } actions = { NoAction; } }
    action f() { t.apply(); }
    apply { if (t.apply().hits) {} t.apply(1); t.lookup(); }
}
