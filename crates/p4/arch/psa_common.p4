// Declarations that all variants of PSA and PNA have. ARCHITECTURE(NAME) and ARCHITECTURE_URI are defined by
// the file that includes this one.

#define NUMBER_TEXT(URI) #URI
#define NUMBER_URI(NAME) NUMBER_TEXT(NAME)

// A number of the data plane: its type, and the bits below it.
#define NUMBER_TYPE(NAME, BITS, RUNTIME_BITS) \
    typedef bit<BITS> NAME##Uint_t; \
    @p4runtime_translation(NUMBER_URI(ARCHITECTURE_URI/NAME##_t), RUNTIME_BITS) \
    type NAME##Uint_t NAME##_t;

// A number that headers carry, too.
#define HEADER_NUMBER_TYPE(NAME, BITS, HEADER_BITS, RUNTIME_BITS) \
    NUMBER_TYPE(NAME, BITS, RUNTIME_BITS) \
    NUMBER_TYPE(NAME##InHeader, HEADER_BITS, RUNTIME_BITS)

// Functions from a header's number to the data plane's, and back.
#define NUMBER_CONVERSION(PREFIX, NAME) \
    NAME##_t PREFIX##_##NAME##_header_to_int(in NAME##InHeader_t x) { \
        return (NAME##_t) (NAME##Uint_t) (NAME##InHeaderUint_t) x; \
    } \
    NAME##InHeader_t PREFIX##_##NAME##_int_to_header(in NAME##_t x) { \
        return (NAME##InHeader_t) (NAME##InHeaderUint_t) (NAME##Uint_t) x; \
    }

typedef error ParserError_t;

match_kind { range, selector, optional }

enum ARCHITECTURE(IdleTimeout_t) { NO_TIMEOUT, NOTIFY_CONTROL }
enum ARCHITECTURE(CounterType_t) { PACKETS, BYTES, PACKETS_AND_BYTES }
enum ARCHITECTURE(MeterType_t) { PACKETS, BYTES }
enum ARCHITECTURE(MeterColor_t) { RED, GREEN, YELLOW }
enum ARCHITECTURE(HashAlgorithm_t) { HASH_ALGORITHMS }

extern Hash<O> {
    Hash(ARCHITECTURE(HashAlgorithm_t) algo);
    @pure O get_hash<D>(in D data);
    @pure O get_hash<T, D>(in T base, in D data, in T max);
}

extern Checksum<W> {
    Checksum(ARCHITECTURE(HashAlgorithm_t) hash);
    void clear();
    void update<T>(in T data);
    @noSideEffects W get();
}

// The checksum of RFC 1071, which can be changed in place (RFC 1624).
extern InternetChecksum {
    InternetChecksum();
    void clear();
    void add<T>(in T data);
    void subtract<T>(in T data);
    @noSideEffects bit<16> get();
    @noSideEffects bit<16> get_state();
    void set_state(in bit<16> checksum_state);
}

@noWarn("unused")
extern Counter<W, S> {
    Counter(bit<32> n_counters, ARCHITECTURE(CounterType_t) type);
    COUNTER_METHODS
}

@noWarn("unused")
extern DirectCounter<W> {
    DirectCounter(ARCHITECTURE(CounterType_t) type);
    DIRECT_COUNTER_METHODS
}

extern Meter<S> {
    Meter(bit<32> n_meters, ARCHITECTURE(MeterType_t) type);
    ARCHITECTURE(MeterColor_t) execute(in S index, in ARCHITECTURE(MeterColor_t) color);
    ARCHITECTURE(MeterColor_t) execute(in S index);
    METER_METHODS
}

extern DirectMeter {
    DirectMeter(ARCHITECTURE(MeterType_t) type);
    DIRECT_METER_METHODS
}

extern Register<T, S> {
    Register(bit<32> size);
    Register(bit<32> size, T initial_value);
    @noSideEffects T read(in S index);
    void write(in S index, in T value);
}

extern Random<T> {
    Random(T min, T max);
    T read();
}

extern ActionProfile { ActionProfile(bit<32> size); }
extern ActionSelector {
    ActionSelector(ARCHITECTURE(HashAlgorithm_t) algo, bit<32> size, bit<32> outputWidth);
}

extern Digest<T> {
    Digest();
    void pack(in T data);
}
