// What graphc calls of ROCm 7.2's <rccl/rccl.h>, in the form of scripts/generate-bindings.sh.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclComm {
    _unused: [u8; 0],
}
pub type ncclComm_t = *mut ncclComm;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ihipStream_t {
    _unused: [u8; 0],
}
pub type hipStream_t = *mut ihipStream_t;
impl ncclResult_t {
    pub const ncclSuccess: ncclResult_t = ncclResult_t(0);
}
impl ncclResult_t {
    pub const ncclUnhandledCudaError: ncclResult_t = ncclResult_t(1);
}
impl ncclResult_t {
    pub const ncclSystemError: ncclResult_t = ncclResult_t(2);
}
impl ncclResult_t {
    pub const ncclInternalError: ncclResult_t = ncclResult_t(3);
}
impl ncclResult_t {
    pub const ncclInvalidArgument: ncclResult_t = ncclResult_t(4);
}
impl ncclResult_t {
    pub const ncclInvalidUsage: ncclResult_t = ncclResult_t(5);
}
impl ncclResult_t {
    pub const ncclRemoteError: ncclResult_t = ncclResult_t(6);
}
impl ncclResult_t {
    pub const ncclInProgress: ncclResult_t = ncclResult_t(7);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclResult_t(pub ::std::os::raw::c_uint);
impl ncclRedOp_t {
    pub const ncclSum: ncclRedOp_t = ncclRedOp_t(0);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclRedOp_t(pub ::std::os::raw::c_uint);
impl ncclDataType_t {
    pub const ncclInt8: ncclDataType_t = ncclDataType_t(0);
}
impl ncclDataType_t {
    pub const ncclUint8: ncclDataType_t = ncclDataType_t(1);
}
impl ncclDataType_t {
    pub const ncclInt32: ncclDataType_t = ncclDataType_t(2);
}
impl ncclDataType_t {
    pub const ncclUint32: ncclDataType_t = ncclDataType_t(3);
}
impl ncclDataType_t {
    pub const ncclInt64: ncclDataType_t = ncclDataType_t(4);
}
impl ncclDataType_t {
    pub const ncclUint64: ncclDataType_t = ncclDataType_t(5);
}
impl ncclDataType_t {
    pub const ncclFloat16: ncclDataType_t = ncclDataType_t(6);
}
impl ncclDataType_t {
    pub const ncclFloat32: ncclDataType_t = ncclDataType_t(7);
}
impl ncclDataType_t {
    pub const ncclFloat64: ncclDataType_t = ncclDataType_t(8);
}
impl ncclDataType_t {
    pub const ncclBfloat16: ncclDataType_t = ncclDataType_t(9);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclDataType_t(pub ::std::os::raw::c_uint);
pub struct RcclLibrary {
    __library: ::libloading::Library,
    pub ncclGetVersion: unsafe extern "C" fn(version: *mut ::std::os::raw::c_int) -> ncclResult_t,
    pub ncclGetErrorString: unsafe extern "C" fn(result: ncclResult_t) -> *const ::std::os::raw::c_char,
    pub ncclCommInitAll: unsafe extern "C" fn(
        comm: *mut ncclComm_t,
        ndev: ::std::os::raw::c_int,
        devlist: *const ::std::os::raw::c_int,
    ) -> ncclResult_t,
    pub ncclCommDestroy: unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t,
    pub ncclCommAbort: unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t,
    pub ncclCommGetAsyncError: unsafe extern "C" fn(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t,
    pub ncclAllReduce: unsafe extern "C" fn(
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: hipStream_t,
    ) -> ncclResult_t,
    pub ncclAllGather: unsafe extern "C" fn(
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        sendcount: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: hipStream_t,
    ) -> ncclResult_t,
}
impl RcclLibrary {
    pub unsafe fn from_library<L>(library: L) -> Result<Self, ::libloading::Error>
    where
        L: Into<::libloading::Library>,
    {
        let __library = library.into();
        let ncclGetVersion = __library.get(c"ncclGetVersion").map(|sym| *sym)?;
        let ncclGetErrorString = __library.get(c"ncclGetErrorString").map(|sym| *sym)?;
        let ncclCommInitAll = __library.get(c"ncclCommInitAll").map(|sym| *sym)?;
        let ncclCommDestroy = __library.get(c"ncclCommDestroy").map(|sym| *sym)?;
        let ncclCommAbort = __library.get(c"ncclCommAbort").map(|sym| *sym)?;
        let ncclCommGetAsyncError = __library.get(c"ncclCommGetAsyncError").map(|sym| *sym)?;
        let ncclAllReduce = __library.get(c"ncclAllReduce").map(|sym| *sym)?;
        let ncclAllGather = __library.get(c"ncclAllGather").map(|sym| *sym)?;
        Ok(RcclLibrary {
            __library,
            ncclGetVersion,
            ncclGetErrorString,
            ncclCommInitAll,
            ncclCommDestroy,
            ncclCommAbort,
            ncclCommGetAsyncError,
            ncclAllReduce,
            ncclAllGather,
        })
    }
    pub unsafe fn ncclGetVersion(&self, version: *mut ::std::os::raw::c_int) -> ncclResult_t {
        (self.ncclGetVersion)(version)
    }
    pub unsafe fn ncclGetErrorString(&self, result: ncclResult_t) -> *const ::std::os::raw::c_char {
        (self.ncclGetErrorString)(result)
    }
    pub unsafe fn ncclCommInitAll(
        &self,
        comm: *mut ncclComm_t,
        ndev: ::std::os::raw::c_int,
        devlist: *const ::std::os::raw::c_int,
    ) -> ncclResult_t {
        (self.ncclCommInitAll)(comm, ndev, devlist)
    }
    pub unsafe fn ncclCommDestroy(&self, comm: ncclComm_t) -> ncclResult_t {
        (self.ncclCommDestroy)(comm)
    }
    pub unsafe fn ncclCommAbort(&self, comm: ncclComm_t) -> ncclResult_t {
        (self.ncclCommAbort)(comm)
    }
    pub unsafe fn ncclCommGetAsyncError(&self, comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t {
        (self.ncclCommGetAsyncError)(comm, asyncError)
    }
    pub unsafe fn ncclAllReduce(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: hipStream_t,
    ) -> ncclResult_t {
        (self.ncclAllReduce)(sendbuff, recvbuff, count, datatype, op, comm, stream)
    }
    pub unsafe fn ncclAllGather(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        sendcount: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: hipStream_t,
    ) -> ncclResult_t {
        (self.ncclAllGather)(sendbuff, recvbuff, sendcount, datatype, comm, stream)
    }
}
