//// warned hidden names
control c(in bit<8> a) { bit<8> b; apply { bit<8> b = 1; } }
//// warned numbers that are cut
const bit<8> a = 256;
const bit<8> b = 8w256;
//// warned ranges, masks and cases that never match
parser p(in bit<8> a) {
    state start { transition select(a) { 5 .. 3: accept; 0x11 &&& 0xF0: accept; default: accept; 1: accept; } }
}
//// warned states without a transition
parser p() { state start { } }
//// warned members of the same value
enum bit<8> E { A = 1, B = 1 }
//// warned last cases without statements
control c(in bit<8> a) { apply { switch (a) { 1: {} 2: } } }
