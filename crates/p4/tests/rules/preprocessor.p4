//// accepted macros with and without parameters, conditions, continued lines
#define SIZE 8
#define TWICE(x) ((x) * 2)
#define NAME(a, b) a ## b
#define TEXT(x) #x
#if defined(SIZE) && TWICE(SIZE) == 16 && !defined NOTHING
const bit<SIZE> NAME(first, _one) = TWICE(3) \
    + 1;
#elif 1
#error "not reached"
#else
broken (
#endif
const string t = TEXT(a b);
const bit<8> again = first_one;
//// accepted a macro does not expand itself
#define a a
const int a = 1;
//// accepted a macro in front of another line's arguments
#define F(x, y) x + y
const int a = F(
    1,
    2);
//// accepted strings, comments and quotes in inactive groups
#ifdef NOTHING
don't /* " */ #error
#endif
//// rejected the place of an error is that of `#line`
#line 100 "other.p4"
const int a = b;
//// rejected errors of the programmer
#error "stop here"
//// rejected unknown directives
#inclde <core.p4>
//// rejected missing files
#include <cor.p4>
//// rejected open conditionals
#if 1
//// rejected branches without a conditional
#endif
#else
//// rejected conditions that are none
#if 1 +
#endif
//// rejected macros with too few arguments
#define F(x, y) x + y
const int a = F(1);
//// rejected macros without an end
#define F(x) x
const int a = F(1;
//// rejected a file that includes itself
#include "program.p4"
//// rejected comments without an end
const int a = 1; /*
//// accepted variable arguments of which the last is empty, and pasting of nothing
#define PAIR(name, ...) const tuple<bit<8>, bit<8>> name = { __VA_ARGS__ 1 };
#define NAMED(a, b) const bit<8> a ## b = 1;
PAIR(x, 2,)
NAMED(y, )
