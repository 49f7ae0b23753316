// Questions about types: see :mod:`cupyops.compile.ask`.

// CupyopsAskedParameters
// `n` is a number, a pointer or void, followed by its type; `e` an enumeration, whose integer type follows; `s` a class,
// `m` a class whose members differ in access, or are those of bases, too,
// `o` a class without data, `i` a class without a definition. A class may have no name, and then it is not an argument
// of a template.
struct __half;
struct __nv_bfloat16;
template <class CupyopsAskedT> struct CupyopsAskedSame {
    typedef CupyopsAskedT CupyopsAskedType;
};
template <class CupyopsAskedT> struct CupyopsAskedVoid : CupyopsAskedSame<void> {};
template <unsigned long long...> struct CupyopsAskedNumbers : CupyopsAskedSame<void> {};
template <class CupyopsAskedT> struct CupyopsAskedElement : CupyopsAskedSame<CupyopsAskedT> {};
template <class CupyopsAskedT> struct CupyopsAskedElement<const CupyopsAskedT> : CupyopsAskedElement<CupyopsAskedT> {};
template <class CupyopsAskedT> struct CupyopsAskedElement<volatile CupyopsAskedT> : CupyopsAskedElement<CupyopsAskedT> {};
template <class CupyopsAskedT> struct CupyopsAskedElement<const volatile CupyopsAskedT> : CupyopsAskedElement<CupyopsAskedT> {};
template <class CupyopsAskedT> struct CupyopsAskedElement<CupyopsAskedT*> : CupyopsAskedElement<CupyopsAskedT> {};
template <class CupyopsAskedT> struct CupyopsAskedElement<CupyopsAskedT* const> : CupyopsAskedElement<CupyopsAskedT> {};
template <class CupyopsAskedT> struct CupyopsAskedElement<CupyopsAskedT&> : CupyopsAskedElement<CupyopsAskedT> {};
template <class CupyopsAskedT, decltype(sizeof(0)) CupyopsAskedN> struct CupyopsAskedElement<CupyopsAskedT[CupyopsAskedN]>
    : CupyopsAskedElement<CupyopsAskedT> {};
template <class CupyopsAskedT, decltype(sizeof(0)) CupyopsAskedN> struct CupyopsAskedElement<const CupyopsAskedT[CupyopsAskedN]>
    : CupyopsAskedElement<CupyopsAskedT> {};
template <class CupyopsAskedT, class = void> struct CupyopsAskedSize {
    static constexpr unsigned long long CupyopsAskedBytes = 0, CupyopsAskedAligned = 0;
};
template <class CupyopsAskedT> struct CupyopsAskedSize<
    CupyopsAskedT, typename CupyopsAskedNumbers<sizeof(CupyopsAskedT)>::CupyopsAskedType> {
    static constexpr unsigned long long CupyopsAskedBytes = sizeof(CupyopsAskedT), CupyopsAskedAligned = alignof(CupyopsAskedT);
};
template <
    class CupyopsAskedT, char = __is_enum(CupyopsAskedT)                                   ? 'e'
                                : !__is_class(CupyopsAskedT) && !__is_union(CupyopsAskedT) ? 'n'
                                : CupyopsAskedSize<CupyopsAskedT>::CupyopsAskedBytes       ? 's'
                                                                                           : 'i'> struct CupyopsAskedKind
    : CupyopsAskedSame<CupyopsAskedT> {
    static constexpr char CupyopsAskedIs = 'n';
};
template <class CupyopsAskedT> struct CupyopsAskedKind<CupyopsAskedT, 'e'>
    : CupyopsAskedSame<__underlying_type(CupyopsAskedT)> {
    static constexpr char CupyopsAskedIs = 'e';
};
template <class CupyopsAskedT> struct CupyopsAskedKind<CupyopsAskedT, 'i'> : CupyopsAskedSame<void> {
    static constexpr char CupyopsAskedIs = 'i';
};
template <class CupyopsAskedT> struct CupyopsAskedKind<CupyopsAskedT, 's'> : CupyopsAskedSame<void> {
    static constexpr char CupyopsAskedIs = __is_empty(CupyopsAskedT) ? 'o' : __is_standard_layout(CupyopsAskedT) ? 's' : 'm';
};
template <> struct CupyopsAskedKind<__half, 's'> : CupyopsAskedSame<__half> {
    static constexpr char CupyopsAskedIs = 'n';
};
template <> struct CupyopsAskedKind<__nv_bfloat16, 's'> : CupyopsAskedSame<__nv_bfloat16> {
    static constexpr char CupyopsAskedIs = 'n';
};
template <
    class CupyopsAskedE, char CupyopsAskedIs, class CupyopsAskedOf, unsigned long long CupyopsAskedBytes,
    unsigned long long CupyopsAskedAligned> struct CupyopsAskedTold;
template <
    class CupyopsAskedP,
    class CupyopsAskedE = typename CupyopsAskedElement<CupyopsAskedP>::CupyopsAskedType> struct CupyopsAskedTell
    : CupyopsAskedSame<CupyopsAskedTold<
          CupyopsAskedP, CupyopsAskedKind<CupyopsAskedE>::CupyopsAskedIs,
          typename CupyopsAskedKind<CupyopsAskedE>::CupyopsAskedType, CupyopsAskedSize<CupyopsAskedE>::CupyopsAskedBytes,
          CupyopsAskedSize<CupyopsAskedE>::CupyopsAskedAligned>> {};
template <class...> struct CupyopsAskedList;
template <class CupyopsAskedF> struct CupyopsAskedParameters;
template <class CupyopsAskedR, class... CupyopsAskedPs> struct CupyopsAskedParameters<CupyopsAskedR (*)(CupyopsAskedPs...)>
    : CupyopsAskedSame<CupyopsAskedList<typename CupyopsAskedTell<CupyopsAskedPs>::CupyopsAskedType...>> {
    typedef CupyopsAskedList<CupyopsAskedPs...> CupyopsAskedPlain;
};
template <int CupyopsAskedI, class CupyopsAskedL> struct CupyopsAskedAt : CupyopsAskedSame<void> {};
template <class CupyopsAskedP, class... CupyopsAskedPs> struct CupyopsAskedAt<
    0, CupyopsAskedList<CupyopsAskedP, CupyopsAskedPs...>> : CupyopsAskedElement<CupyopsAskedP> {};
template <int CupyopsAskedI, class CupyopsAskedP, class... CupyopsAskedPs> struct CupyopsAskedAt<
    CupyopsAskedI, CupyopsAskedList<CupyopsAskedP, CupyopsAskedPs...>>
    : CupyopsAskedAt<CupyopsAskedI - 1, CupyopsAskedList<CupyopsAskedPs...>> {};
template <class CupyopsAskedT, unsigned long long... CupyopsAskedNs> struct CupyopsAskedArray {
    typedef CupyopsAskedNumbers<CupyopsAskedNs...> CupyopsAskedExtents;
    typedef CupyopsAskedT CupyopsAskedItem;
};
template <class CupyopsAskedT, decltype(sizeof(0)) CupyopsAskedN, unsigned long long... CupyopsAskedNs> struct CupyopsAskedArray<
    CupyopsAskedT[CupyopsAskedN], CupyopsAskedNs...> : CupyopsAskedArray<CupyopsAskedT, CupyopsAskedNs..., CupyopsAskedN> {};
template <class CupyopsAskedT> struct CupyopsAskedObject : CupyopsAskedSame<void> {};
template <class CupyopsAskedT> struct CupyopsAskedObject<CupyopsAskedT&> : CupyopsAskedSame<bool> {};
template <
    char CupyopsAskedIs, class CupyopsAskedOf, unsigned long long CupyopsAskedBytes, unsigned long long CupyopsAskedAligned,
    unsigned long long CupyopsAskedPlace, class CupyopsAskedNs> struct CupyopsAskedField;
template <class CupyopsAskedM, bool = true> struct CupyopsAskedData {
    static constexpr bool CupyopsAskedIs = false;
};
template <class CupyopsAskedM, class CupyopsAskedC> struct CupyopsAskedData<
    CupyopsAskedM CupyopsAskedC::*, CupyopsAskedSize<CupyopsAskedM>::CupyopsAskedBytes != 0>
    : CupyopsAskedArray<CupyopsAskedM> {
    static constexpr bool CupyopsAskedIs = true;
};
// NVRTC has no offsetof.
#ifdef CUPYOPS_SIMULATOR
#define CUPYOPS_OFFSET_OF(T, member) __builtin_offsetof(T, member)
#else
#define CUPYOPS_OFFSET_OF(T, member) __INTADDR__(&(((T*)0)->member))
#endif
// The member of a name. A bit field and a reference have no address: the answer is bool for such a member, whose offset is unknown.
#define CUPYOPS_ASKED_FIELD(name) \
    template <class CupyopsAskedE, class = void> struct CupyopsAskedMember_##name { \
        static constexpr bool CupyopsAskedIs = false, CupyopsAskedAny = false; \
    }; \
    template <class CupyopsAskedE> struct CupyopsAskedMember_##name< \
        CupyopsAskedE, typename CupyopsAskedVoid<decltype(&CupyopsAskedE::name)>::CupyopsAskedType> \
        : CupyopsAskedData<decltype(&CupyopsAskedE::name)> { \
        static constexpr bool CupyopsAskedAny = true; \
    }; \
    template <class CupyopsAskedE, class = void> struct CupyopsAskedOther_##name : CupyopsAskedSame<void> {}; \
    template <class CupyopsAskedE> struct CupyopsAskedOther_##name< \
        CupyopsAskedE, typename CupyopsAskedVoid<decltype(((CupyopsAskedE*)0)->name)>::CupyopsAskedType> \
        : CupyopsAskedObject<decltype((((CupyopsAskedE*)0)->name))> {}; \
    template < \
        class CupyopsAskedE, bool = CupyopsAskedMember_##name<CupyopsAskedE>::CupyopsAskedIs, \
        bool = CupyopsAskedMember_##name<CupyopsAskedE>::CupyopsAskedAny> struct CupyopsAskedField_##name \
        : CupyopsAskedOther_##name<CupyopsAskedE> { \
        typedef void CupyopsAskedItem; \
    }; \
    template <class CupyopsAskedE> struct CupyopsAskedField_##name<CupyopsAskedE, false, true> : CupyopsAskedSame<void> { \
        typedef void CupyopsAskedItem; \
    }; \
    template <class CupyopsAskedE> struct CupyopsAskedField_##name<CupyopsAskedE, true, true> { \
        typedef typename CupyopsAskedMember_##name<CupyopsAskedE>::CupyopsAskedItem CupyopsAskedItem; \
        typedef CupyopsAskedField< \
            CupyopsAskedKind<CupyopsAskedItem>::CupyopsAskedIs, typename CupyopsAskedKind<CupyopsAskedItem>::CupyopsAskedType, \
            CupyopsAskedSize<CupyopsAskedItem>::CupyopsAskedBytes, CupyopsAskedSize<CupyopsAskedItem>::CupyopsAskedAligned, \
            CUPYOPS_OFFSET_OF(CupyopsAskedE, name), typename CupyopsAskedMember_##name<CupyopsAskedE>::CupyopsAskedExtents> \
            CupyopsAskedType; \
    };
