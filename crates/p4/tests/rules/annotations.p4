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
