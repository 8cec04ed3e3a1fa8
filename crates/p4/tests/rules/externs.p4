//// accepted constructors, inference, abstract methods, generic objects
extern Register<T> { Register(bit<32> size); Register(bit<32> size, T first); T read(in bit<32> i); void write(in bit<32> i, in T v); }
extern Worker<T> { Worker(); abstract T run(in T a); @optional abstract void stop(); }
control Inner(inout bit<8> a)(bit<8> start, Register<bit<8>> shared) { apply { a = shared.read(1) + start; } }
control Plain(inout bit<8> a) { apply {} }
control C(inout bit<8> a) {
    Register<bit<8>>(16) plain;
    Register(16, 8w3) inferred;
    Worker<bit<8>>() worker = { bit<8> run(in bit<8> x) { return x + 1 + this.run(x); } };
    Inner(start = 2, shared = plain) inner;
    apply { inferred.write(1, a); a = worker.run(a); inner.apply(a); Plain.apply(a); }
}
control Type<T>(inout T a);
package Top<T>(Type<T> c, @optional Type<T> d);
Top(C()) main;
//// rejected methods and arguments
extern Register<T> { Register(bit<32> size); T read(in bit<32> i); }
control C(inout bit<8> a, in bit<32> n) {
    Register<bit<8>>(16) plain;
    Register<bool>(n) unknown_size;
    Register(16) uninferred;
    Register<bool>() none;
    apply { a = plain.raed(1); a = plain.read(true); bool b = plain.read(1); plain = plain; }
}
//// rejected abstract methods that are missing, wrong or unknown
extern Worker { Worker(); abstract bit<8> run(in bit<8> a); void stop(); }
Worker() a;
Worker() b = { bit<9> run(in bit<8> a) { return 1; } };
Worker() c = { bit<8> run(out bit<8> a) { return 1; } };
Worker() d = { bit<8> rnu(in bit<8> a) { return 1; } bit<8> run(in bit<8> a) { return 1; } };
Worker() e = { bit<8> run(in bit<8> a) { } };
//// rejected arguments of packages
control Good(inout bit<8> a) { apply {} }
control Bad(in bit<8> a) { apply {} }
parser P(inout bit<8> a) { state start { transition accept; } }
control Type(inout bit<8> a);
package Top(Type c);
Top(Bad()) one;
Top(P()) two;
Top() three;
Top(Good()) main;
//// rejected type arguments that differ
control A(inout bit<8> a) { apply {} }
control B(inout bit<9> a) { apply {} }
control Type<T>(inout T a);
package Top<T>(Type<T> c, Type<T> d);
Top(A(), B()) main;
//// rejected objects in wrong places
extern e { e(); }
control c() { apply {} }
c() outside;
void f() { e() inner; }
e() main;
//// rejected constructors
extern a { b(); }
extern c { abstract c(); }
extern d { d(in bit<8> x); }
//// rejected `this` outside of methods
control c() { apply { this.run(); } }
//// rejected objects with directions
extern e { e(); }
control c(in e a) { apply {} }
//// rejected `apply` of types, and of controls in actions
control Type();
control Inner() { apply {} }
control c() { Inner() i; action a() { i.apply(); } apply { Type.apply(); i.run(); } }
//// accepted the code of an extern function, behind its use
extern bit<16> twice(in bit<16> a);
control c(inout bit<16> a) { apply { a = twice(a); } }
bit<16> twice(in bit<16> a) { return a + a; }
control d(inout bit<16> a) { apply { a = twice(a); } }
//// rejected functions with another signature than the extern's, and a second code
extern bit<16> twice(in bit<16> a);
bit<8> twice(in bit<16> a) { return 1; }
extern void change(inout bit<8> a);
void change(in bit<8> a) { }
extern void nothing(in bit<8> a);
void nothing(in bit<8> a) { }
void nothing(in bit<8> a) { }
