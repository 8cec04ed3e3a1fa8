// The core library. Source: P4_16 language specification 1.2.5, appendix "P4 core library".
#ifndef _CORE_P4_
#define _CORE_P4_

match_kind { exact, ternary, lpm }

error {
    NoError, PacketTooShort, NoMatch, StackOutOfBounds, HeaderTooShort, ParserTimeout, ParserInvalidArgument
}

// Bytes of a packet that a parser reads.
extern packet_in {
    // Reads a header of a fixed size.
    void extract<T>(out T hdr);
    // Reads a header with one varbit field, whose size is given.
    void extract<T>(out T variableSizeHeader, in bit<32> variableFieldSizeInBits);
    // Reads bits and stays in front of them.
    T lookahead<T>();
    // Skips bits.
    void advance(in bit<32> sizeInBits);
    // Size of the packet in bytes.
    bit<32> length();
}

// Bytes of a packet that a deparser writes.
extern packet_out {
    void emit<T>(in T hdr);
}

// Ends the parser with an error if the condition does not hold.
extern void verify(in bool check, in error toSignal);

extern bool static_assert(bool check, string message);
extern bool static_assert(bool check);

@noWarn("unused")
action NoAction() {}

#endif
