//// accepted free, structured and empty annotations
@hidden @note(any (tokens) don't matter) @list[1, "a", 2 + 3] @pairs[a = 1, b = true]
const bit<8> a = 1;
@name("full" ++ ".name") action f() {}
@pragma anything until the end
const bit<8> b = 2;
//// rejected structured annotations twice, or mixed
@a[1] @a[2] const bit<8> x = 1;
@b(1) @b[] const bit<8> y = 1;
//// rejected values and keys of annotations
@a[b = 1, b = 2] const bit<8> x = 1;
@a[{ 1, 2 }] const bit<8> y = 1;
@a[unknown] const bit<8> z = 1;
//// rejected arguments of defined annotations
@name(4) action f() {}
@deprecated("a" | "b") action g() {}
@pkginfo const bit<8> x = 1;
struct S { @match(1 + 1) bit<8> a; }
//// rejected annotations of parameters, properties, listed actions and entries
control c(@a[u1] in bit<8> x) {
    action f(@a[u2] bit<8> y) {}
    action g() {}
    table t {
        key = { x : exact; }
        actions = { @a[u3] f; g; }
        @a[u4] const default_action = g();
        entries = { @a[u5] 1 : f(2) @a[u5]; }
    }
    apply { t.apply(); }
}
