//! Several devices that compute one model together: a program of one variant for each rank, loaded on a device each.
//!
//! Before: a program whose variants are the ranks' parts of a model (`ir::plan::Share`). After: one loaded program,
//! whose inputs and outputs are the whole model's. Each run enqueues every rank from a thread of its own, since a
//! collective may wait on the host for the other ranks; what ports are cut, is cut and joined here.
//!
//! Ranks may also be [stages], which have layers each and follow each other.
//!
//! Invariant: all ranks see the runs in one order: a run is enqueued on all of them before the next is begun.
//!
//! Invariant: nobody waits for a rank that failed. The first error of a run that is not a refusal ends the
//! communicators, which lets go of what waits for that rank; the ranks do not compute together again.

mod run;
mod stages;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ir::library::Collective;
use ir::plan::{Plan, Share};
use ir::{HostTensor, Program, Target};

use crate::checks::check;
use crate::cpu::meeting::Meeting;
use crate::cpu::{self, CpuDevice};
use crate::device::{Device, LoadOptions, Loaded, is_for, made_for};
use crate::error::RuntimeError;
use crate::gpu::peer::Entrance;
use crate::gpu::{GpuDevice, Vendor};
use crate::library::rccl::Communicators;
use crate::tensor::DeviceTensor;
use run::RankedLoaded;
use stages::{OneStage, StagedLoaded};

/// Several devices that compute one model together, a rank each; see the [module](self).
pub struct RankedDevice {
    name: String,
    product: String,
    kind: Kind,
}

enum Kind {
    /// So many programs on the host's processor, which share its threads: for trying out what is meant for GPUs.
    Cpu(u32, CpuDevice),
    Gpus {
        gpus: Vec<Arc<GpuDevice>>,
        communicators: Mutex<Option<Arc<Communicators>>>,
        /// Why the GPUs do not compute together any more.
        ended: Arc<OnceLock<String>>,
        /// Held while a run is enqueued on all ranks.
        order: Arc<Mutex<()>>,
    },
}

impl RankedDevice {
    /// So many ranks on the host's processor.
    ///
    /// # Errors
    /// `NotAvailable` for fewer than 2 or more than [`Collective::MOST_RANKS`].
    pub fn cpu(ranks: u32, cpu: CpuDevice) -> Result<RankedDevice, RuntimeError> {
        check_count(ranks as usize)?;
        Ok(RankedDevice {
            name: vec!["cpu"; ranks as usize].join(","),
            product: "cpu".into(),
            kind: Kind::Cpu(ranks, cpu),
        })
    }

    /// GPUs of one vendor and kind, the first of which is rank 0.
    ///
    /// # Errors
    /// `NotAvailable` for fewer than 2, a GPU that is there twice, and GPUs of different processors.
    pub fn gpus(gpus: Vec<Arc<GpuDevice>>) -> Result<RankedDevice, RuntimeError> {
        check_count(gpus.len())?;
        let numbers: Vec<String> = gpus.iter().map(|gpu| gpu.ordinal().to_string()).collect();
        let name = format!("{}:{}", gpus[0].vendor().name(), numbers.join(","));
        let refuse = |reason: String| {
            Err(RuntimeError::NotAvailable {
                what: format!("device {name}"),
                reason,
            })
        };
        for (index, gpu) in gpus.iter().enumerate() {
            let before = &gpus[..index];
            if before.iter().any(|other| other.name() == gpu.name()) {
                return refuse(format!(
                    "{} is there twice; each rank needs a device of its own",
                    gpu.name()
                ));
            }
            if gpu.vendor() != gpus[0].vendor() || gpu.target().processor() != gpus[0].target().processor() {
                return refuse(format!(
                    "{} is a {} and {} a {}; ranks compute on devices of one kind",
                    gpus[0].name(),
                    gpus[0].target(),
                    gpu.name(),
                    gpu.target()
                ));
            }
        }
        gpus.iter().for_each(|gpu| gpu.is_beside(&gpus));
        Ok(RankedDevice {
            product: format!("{} x {}", gpus.len(), gpus[0].product()),
            name,
            kind: Kind::Gpus {
                gpus,
                communicators: Mutex::default(),
                ended: Arc::default(),
                order: Arc::default(),
            },
        })
    }

    /// The GPUs, by rank; none of them on the CPU.
    pub fn devices(&self) -> &[Arc<GpuDevice>] {
        match &self.kind {
            Kind::Cpu(..) => &[],
            Kind::Gpus { gpus, .. } => gpus,
        }
    }

    fn count(&self) -> u32 {
        match &self.kind {
            Kind::Cpu(ranks, _) => *ranks,
            Kind::Gpus { gpus, .. } => gpus.len() as u32,
        }
    }

    /// The variants of a program's ranks, the first of which is given.
    fn variants(&self, program: &Program, first: usize) -> Result<Vec<usize>, RuntimeError> {
        let not = |reason: String| RuntimeError::NotAvailable {
            what: format!("code for device {}", self.name),
            reason,
        };
        let plan = &program.variants[first].plan;
        if !is_for(plan, self.count()) {
            let made = made_for(plan);
            return Err(not(format!(
                "the program was compiled for {made}, and this is {} devices; compile it for as many",
                self.count()
            )));
        }
        let mut variants = vec![first];
        for rank in 1..self.count() {
            let is_rank = |other: &Plan| {
                let share = other.share.as_ref().filter(|share| share.ranks == self.count());
                let fits = |share: &Share| share.rank == rank && share.stage.is_some() == is_staged(plan);
                other.target == plan.target && share.is_some_and(fits)
            };
            let found = program.variants.iter().position(|variant| is_rank(&variant.plan));
            let found = found.ok_or_else(|| not(format!("the program has no rank {rank} for {}", plan.target)))?;
            if !is_staged(plan) {
                check_alike(plan, &program.variants[found].plan, rank)?;
            }
            variants.push(found);
        }
        Ok(variants)
    }
}

/// Whether a plan is a stage.
fn is_staged(plan: &Plan) -> bool {
    plan.share.as_ref().is_some_and(|share| share.stage.is_some())
}

impl RankedDevice {
    /// Loads the stages of a model, each on its device.
    fn load_stages(
        &self,
        program: &Arc<Program>,
        variants: &[usize],
        options: &LoadOptions,
    ) -> Result<Arc<dyn Loaded>, RuntimeError> {
        for variant in variants {
            check(&program.variants[*variant].plan, program)?;
        }
        // What does not fit each other is said before anything goes up.
        stages::face(program, variants)?;
        let of_cpu = self.cpu_options(options);
        let load = |stage: usize| -> Result<OneStage, RuntimeError> {
            let (loaded, name, entrance) = match &self.kind {
                Kind::Cpu(_, cpu) => (
                    cpu.load(program.clone(), variants[stage], &of_cpu)?,
                    "cpu".to_owned(),
                    None,
                ),
                Kind::Gpus { gpus, .. } => {
                    let gpu = &gpus[stage];
                    let loaded = gpu.load(program.clone(), variants[stage], options)?;
                    (loaded, gpu.name().to_owned(), Some(Entrance::new(gpu, gpus)?))
                }
            };
            let plan = &program.variants[variants[stage]].plan;
            Ok(OneStage {
                loaded,
                name,
                entrance,
                ports: plan
                    .share
                    .as_ref()
                    .and_then(|share| share.stage.clone())
                    .unwrap_or_default(),
                checks: plan.checks.len(),
            })
        };
        // Weights go to all devices at once.
        let stages: Vec<Result<OneStage, RuntimeError>> = std::thread::scope(|scope| {
            let load = &load;
            let threads: Vec<_> = (0..variants.len())
                .map(|stage| scope.spawn(move || load(stage)))
                .collect();
            threads.into_iter().map(run::joined).collect()
        });
        let numbered = stages.into_iter().enumerate();
        let stages =
            numbered.map(|(stage, loaded)| loaded.map_err(|error| of_loading(stage, self.one_name(stage), error)));
        let stages: Vec<OneStage> = stages.collect::<Result<_, _>>()?;
        Ok(Arc::new(StagedLoaded::new(program, variants, &self.name, stages)?))
    }

    /// The device of one rank.
    fn one_name(&self, rank: usize) -> String {
        self.devices().get(rank).map_or("cpu", |gpu| gpu.name()).to_owned()
    }

    /// How each rank on the CPU is loaded: all run at once, and share the cores.
    fn cpu_options(&self, options: &LoadOptions) -> LoadOptions {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if options.threads == 0 { cores } else { options.threads };
        LoadOptions {
            threads: (threads / self.count() as usize).max(1),
            ..options.clone()
        }
    }
}

/// The error of loading a stage; memory that is not there names its device, and who can plan adds what would do.
fn of_loading(stage: usize, device: String, error: RuntimeError) -> RuntimeError {
    match error {
        error if error.is_refusal() || matches!(error, RuntimeError::OutOfDeviceMemory(_)) => error,
        error => RuntimeError::Stage {
            stage,
            device,
            begun: false,
            error: Box::new(error),
        },
    }
}

fn check_count(ranks: usize) -> Result<(), RuntimeError> {
    let most = Collective::MOST_RANKS;
    if (2..=most as usize).contains(&ranks) {
        return Ok(());
    }
    Err(RuntimeError::NotAvailable {
        what: format!("{ranks} devices for one model"),
        reason: format!("a model is shared among 2 to {most}"),
    })
}

/// Ranks that do not come to the same collectives would wait for ever.
fn check_alike(first: &Plan, other: &Plan, rank: u32) -> Result<(), RuntimeError> {
    let list = |plan: &Plan| -> Vec<_> {
        let types = plan
            .collectives()
            .map(|(of, part, _)| (of, plan.buffers[part].ty.clone()));
        types.collect()
    };
    let cuts = |plan: &Plan| plan.share.clone().map(|share| (share.inputs, share.outputs));
    let ports = |plan: &Plan| -> Vec<_> {
        let all = plan.inputs.iter().chain(&plan.outputs);
        all.map(|port| (port.name.clone(), port.ty.clone())).collect()
    };
    if list(first) != list(other) || cuts(first) != cuts(other) || ports(first) != ports(other) {
        return Err(RuntimeError::Program(format!(
            "rank {rank} has other collectives or other ports than rank 0"
        )));
    }
    Ok(())
}

impl Device for RankedDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn product(&self) -> &str {
        &self.product
    }

    fn arch(&self) -> &str {
        self.devices().first().map_or("", |gpu| gpu.arch())
    }

    fn driver(&self) -> &str {
        self.devices().first().map_or("", |gpu| gpu.driver())
    }

    fn ranks(&self) -> u32 {
        self.count()
    }

    fn set_timeout(&self, timeout: Option<std::time::Duration>) {
        self.devices().iter().for_each(|gpu| gpu.set_timeout(timeout));
    }

    fn runs(&self, target: &Target) -> bool {
        match &self.kind {
            Kind::Cpu(..) => cpu::runs(target),
            Kind::Gpus { gpus, .. } => gpus.iter().all(|gpu| gpu.runs(target)),
        }
    }

    fn load(
        &self,
        program: Arc<Program>,
        variant: usize,
        options: &LoadOptions,
    ) -> Result<Arc<dyn Loaded>, RuntimeError> {
        let variants = self.variants(&program, variant)?;
        if is_staged(&program.variants[variant].plan) {
            return self.load_stages(&program, &variants, options);
        }
        let mut face = (*program).clone();
        face.variants[variant].plan = program.variants[variant].plan.with_whole_ports();
        let parts = RankedLoaded::parts(&program, &variants, &self.name, face);
        match &self.kind {
            Kind::Cpu(ranks, cpu) => {
                let options = self.cpu_options(options);
                let (meeting, seats) = Meeting::seats(*ranks as usize);
                let pairs = variants.iter().zip(seats).enumerate();
                let loaded = pairs.map(|(rank, (variant, seat))| {
                    let loaded = cpu.load_seat(program.clone(), *variant, &options, Some(seat));
                    let loaded: Arc<dyn Loaded> = Arc::new(loaded.map_err(|error| of_rank(rank, "cpu", error))?);
                    Ok(loaded)
                });
                let loaded = loaded.collect::<Result<_, RuntimeError>>()?;
                Ok(parts.on_cpu(loaded, meeting))
            }
            Kind::Gpus {
                gpus,
                communicators,
                ended,
                order,
            } => {
                if let Some(reason) = ended.get() {
                    return Err(RuntimeError::RanksEnded {
                        devices: self.name.clone(),
                        reason: reason.clone(),
                    });
                }
                let mut opened = communicators.lock().unwrap_or_else(PoisonError::into_inner);
                let communicators = match &*opened {
                    Some(communicators) => communicators.clone(),
                    None => {
                        let ordinals: Vec<usize> = gpus.iter().map(|gpu| gpu.ordinal()).collect();
                        let (name, sonames) = match gpus[0].vendor() {
                            Vendor::Hip => ("RCCL", rccl_sys::RCCL_SONAMES),
                            Vendor::Cuda => ("NCCL", rccl_sys::NCCL_SONAMES),
                        };
                        let search = gpus[0].collectives();
                        let made = Communicators::open(name, sonames, search, &ordinals, &self.name)?;
                        opened.insert(made).clone()
                    }
                };
                drop(opened);
                let seats: Vec<_> = communicators.seats().collect();
                // Weights go to all devices at once.
                let loaded: Vec<Result<Arc<dyn Loaded>, RuntimeError>> = std::thread::scope(|scope| {
                    let each = gpus.iter().zip(&variants).zip(seats);
                    let threads: Vec<_> = each
                        .map(|((gpu, variant), seat)| {
                            let program = program.clone();
                            scope.spawn(move || gpu.load_rank(program, *variant, options, seat))
                        })
                        .collect();
                    threads.into_iter().map(run::joined).collect()
                });
                let pairs = loaded.into_iter().zip(gpus).enumerate();
                let loaded = pairs.map(|(rank, (loaded, gpu))| {
                    // What would do for one rank is no answer for all of them.
                    loaded.map_err(|error| of_rank(rank, gpu.name(), error))
                });
                let loaded = loaded.collect::<Result<_, RuntimeError>>()?;
                let names = gpus.iter().map(|gpu| gpu.name().to_owned()).collect();
                Ok(parts.on_gpus(loaded, names, communicators, ended.clone(), order.clone()))
            }
        }
    }

    /// The tensor stays on the host until a run cuts it, or gives it to all ranks.
    fn upload(&self, tensor: &HostTensor) -> Result<DeviceTensor, RuntimeError> {
        Ok(cpu::share(tensor))
    }
}

/// The error of one rank; what every rank would say is said as it is.
fn of_rank(rank: usize, device: &str, error: RuntimeError) -> RuntimeError {
    match error {
        error @ (RuntimeError::Rank { .. } | RuntimeError::RanksEnded { .. }) => error,
        error if error.is_refusal() => error,
        error => RuntimeError::Rank {
            rank,
            device: device.to_owned(),
            error: Box::new(error),
        },
    }
}

impl std::fmt::Debug for RankedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RankedDevice")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
