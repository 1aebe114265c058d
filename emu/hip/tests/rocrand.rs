//! Random numbers by the real rocRAND on an emulated gfx90a, against its generators for the host, which compute the
//! same sequences in C++. Whole numbers are equal; floats differ by roundings of their transforms at most.

mod library;
use library::{Element, Rocm, Worst, inside};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

const LIBRARY: &str = "librocrand.so.1";
const QUASI: c_int = 500;
/// Those whose states are cheap to set up; the others start a hundred thousand states far into their sequences.
const GENERATORS: [(&str, c_int); 4] = [
    ("philox4x32-10", 404),
    ("threefry2x32-20", 408),
    ("threefry4x32-20", 410),
    ("sobol32", 501),
];

type Generator = *mut c_void;
type Create = unsafe extern "C" fn(*mut Generator, c_int) -> c_int;
type Set = unsafe extern "C" fn(Generator, u64) -> c_int;
type Generate = unsafe extern "C" fn(Generator, *mut c_void, usize) -> c_int;
type Normal<T> = unsafe extern "C" fn(Generator, *mut c_void, usize, T, T) -> c_int;
type Destroy = unsafe extern "C" fn(Generator) -> c_int;

/// Generates `count` numbers on the device and on the host, by generators of their own.
fn both<T: Element>(
    rocm: &Rocm,
    kind: c_int,
    count: usize,
    generate: impl Fn(Generator, *mut c_void) -> c_int,
) -> (Vec<T>, Vec<T>) {
    let seed: Set = rocm.symbol("rocrand_set_seed");
    let offset: Set = rocm.symbol("rocrand_set_offset");
    let destroy: Destroy = rocm.symbol("rocrand_destroy_generator");
    let target = rocm.empty(count * size_of::<T>());
    let mut host: Vec<T> = vec![T::of(0.0); count];
    let places = [
        ("rocrand_create_generator", target.0),
        ("rocrand_create_generator_host_blocking", host.as_mut_ptr().cast()),
    ];
    for (create, place) in places {
        let create: Create = rocm.symbol(create);
        let mut generator = null_mut();
        // SAFETY: a place for the result; then a live generator, which is destroyed once its work is done.
        unsafe {
            assert_eq!(create(&mut generator, kind), 0);
            if kind < QUASI {
                assert_eq!(seed(generator, 0x1234_5678_9abc), 0);
            }
            assert_eq!(offset(generator, 7), 0);
            assert_eq!(generate(generator, place), 0);
            assert_eq!(generate(generator, place), 0);
            assert_eq!(rocm.hip.hipDeviceSynchronize(), hip_sys::hipError_t::hipSuccess);
            assert_eq!(destroy(generator), 0);
        }
    }
    (target.download(count), host)
}

#[test]
fn generators() {
    inside("generators", LIBRARY, || {
        let rocm = Rocm::open(LIBRARY);
        let count = 5_000;
        for (name, kind) in GENERATORS {
            let begin = std::time::Instant::now();
            let generate: Generate = rocm.symbol("rocrand_generate");
            // SAFETY: the place has twice `count` numbers of 32 bits.
            let (device, host) = both::<f64>(&rocm, kind, count, |generator, place| unsafe {
                generate(generator, place, 2 * count)
            });
            let words = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<u64>>();
            assert_eq!(words(&device), words(&host), "{name}");
            assert!(
                device.windows(2).any(|pair| pair[0].to_bits() != pair[1].to_bits()),
                "{name}"
            );

            let mut worst = Worst::default();
            let uniform: Generate = rocm.symbol("rocrand_generate_uniform");
            // SAFETY: the place has `count` floats.
            let (device, host) = both::<f32>(&rocm, kind, count, |generator, place| unsafe {
                uniform(generator, place, count)
            });
            for (index, (got, want)) in device.iter().zip(&host).enumerate() {
                assert!(*got > 0.0 && *got <= 1.0, "{name}: {got}");
                worst.check((*got).into(), (*want).into(), 2f64.powi(-24), || {
                    format!("{name} uniform {index}")
                });
            }
            let uniform: Generate = rocm.symbol("rocrand_generate_uniform_double");
            // SAFETY: the place has `count` doubles.
            let (device, host) = both::<f64>(&rocm, kind, count, |generator, place| unsafe {
                uniform(generator, place, count)
            });
            for (index, (got, want)) in device.iter().zip(&host).enumerate() {
                worst.check(*got, *want, 2f64.powi(-53), || format!("{name} uniform double {index}"));
            }
            if kind >= QUASI {
                // Their normal numbers come from an inverse that loses its digits near the median, on either side in
                // its own way.
                worst.report(name);
                continue;
            }
            let normal: Normal<f32> = rocm.symbol("rocrand_generate_normal");
            // SAFETY: the place has `count` floats.
            let (device, host) = both::<f32>(&rocm, kind, count, |generator, place| unsafe {
                normal(generator, place, count, 1.0, 2.0)
            });
            for (index, (got, want)) in device.iter().zip(&host).enumerate() {
                // The device's logarithm, sine and cosine are fast ones: an error of 2^-20 of values up to 13.
                worst.check((*got).into(), (*want).into(), 13.0 * 2f64.powi(-18), || {
                    format!("{name} normal {index}")
                });
            }
            let mean = device.iter().map(|x| f64::from(*x)).sum::<f64>() / count as f64;
            assert!((mean - 1.0).abs() < 0.2, "{name}: the mean is {mean}");
            worst.report(name);
            println!("{name}: {:?}", begin.elapsed());
        }
    });
}
