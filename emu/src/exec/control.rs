//! Branches, calls, waits, barriers, and the registers that steer a wave.

use super::operand::{Build, Ty};
use super::salu::{dst, get, imm16, src, wide};
use super::scoreboard::{Counter, Set};
use super::wave::{Exec, Flow, Trap, Wave};
use crate::decode::text::{FLAT_SCRATCH, Kind, M0, number};
use crate::error::FaultKind;

/// The device address that a branch goes to: its 16-bit word offset counts from the next instruction.
fn branch_target(b: &Build<'_>) -> u64 {
    let offset = i64::from(i16::from_le_bytes([b.raw[0], b.raw[1]])) * 4;
    (b.image_base + b.address + u64::from(b.size)).wrapping_add_signed(offset)
}

fn branch(b: &Build<'_>, taken: fn(&Wave) -> bool) -> Result<Exec, String> {
    let target = branch_target(b);
    Ok(Box::new(move |w, _| {
        Ok(if taken(w) { Flow::Jump(target) } else { Flow::Next })
    }))
}

fn nothing() -> Result<Exec, String> {
    Ok(Box::new(|_, _| Ok(Flow::Next)))
}

/// A cache operation: nothing to do, but one more operation to wait for.
fn cache(counter: Counter) -> Result<Exec, String> {
    Ok(Box::new(move |w, _| {
        w.board.issue(counter, &Set::default(), false);
        Ok(Flow::Next)
    }))
}

fn flow(flow: Flow) -> Result<Exec, String> {
    Ok(Box::new(move |_, _| Ok(flow)))
}

pub(super) fn control(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    if let Some(waits) = wait(b, name) {
        return Some(waits);
    }
    Some(match name {
        "s_nop"
        | "s_delay_alu"
        | "s_clause"
        | "s_setprio"
        | "s_sethalt"
        | "s_icache_inv"
        | "s_dcache_inv"
        | "s_dcache_wb"
        | "s_dcache_inv_vol"
        | "s_dcache_wb_vol"
        | "s_gl1_inv"
        | "s_inst_prefetch"
        | "s_set_inst_prefetch_distance"
        | "s_sendmsg"
        | "s_wait_alu"
        | "s_waitcnt_depctr"
        | "s_incperflevel"
        | "s_decperflevel"
        | "s_ttracedata"
        | "s_ttracedata_imm"
        | "s_wakeup"
        | "s_set_vskip"
        | "s_prefetch_inst"
        | "s_prefetch_data"
        | "s_prefetch_inst_pc_rel"
        | "s_prefetch_data_pc_rel"
        | "s_wait_event"
        | "s_version"
        | "s_buffer_prefetch_data"
        | "s_setkill"
        | "s_singleuse_vdst"
        | "buffer_gl0_inv"
        | "buffer_gl1_inv"
        | "buffer_wbinvl1"
        | "buffer_wbinvl1_vol"
        | "buffer_wbl2"
        | "buffer_invl2"
        | "buffer_inv" => nothing(),
        // From gfx12 on cache operations are counted like the accesses that they order.
        "global_inv" => cache(Counter::Vector),
        "global_wb" | "global_wbinv" => cache(Counter::Store),
        "s_endpgm" | "s_endpgm_saved" => flow(Flow::End),
        "s_code_end" => Ok(Box::new(|_, _| Err(Trap::new(FaultKind::Unknown("s_code_end".into()))))),
        "s_sleep" | "s_sleep_var" | "s_barrier_leave" => flow(Flow::Yield),
        "s_barrier" => Ok(Box::new(|w, env| {
            env.arrive(w);
            Ok(Flow::Barrier)
        })),
        "s_barrier_signal" | "s_barrier_signal_isfirst" => signal(b),
        "s_barrier_wait" => barrier_wait(b),
        "s_trap" => {
            let id = imm16(b, 0).unwrap_or(0) as u32;
            Ok(Box::new(move |_, _| Err(Trap::new(FaultKind::Trap(id)))))
        }
        "s_branch" => branch(b, |_| true),
        "s_cbranch_scc0" => branch(b, |w| !w.scc),
        "s_cbranch_scc1" => branch(b, |w| w.scc),
        "s_cbranch_vccz" => branch(b, |w| w.vcc() & w.lane_mask == 0),
        "s_cbranch_vccnz" => branch(b, |w| w.vcc() & w.lane_mask != 0),
        "s_cbranch_execz" => branch(b, |w| w.exec() == 0),
        "s_cbranch_execnz" => branch(b, |w| w.exec() != 0),
        "s_cbranch_cdbgsys" | "s_cbranch_cdbguser" => branch(b, |_| false),
        "s_getpc_b64" => dst(b).map(|d| -> Exec {
            Box::new(move |w, _| {
                let pc = w.next_address;
                w.write_s64(d, pc);
                Ok(Flow::Next)
            })
        }),
        "s_setpc_b64" => {
            wide(b, 0, Ty::B64).map(|target| -> Exec { Box::new(move |w, _| Ok(Flow::Jump(target.get(w)))) })
        }
        "s_swappc_b64" => dst(b)
            .and_then(|d| Ok((d, wide(b, 1, Ty::B64)?)))
            .map(|(d, target)| -> Exec {
                Box::new(move |w, _| {
                    let to = target.get(w);
                    let pc = w.next_address;
                    w.write_s64(d, pc);
                    Ok(Flow::Jump(to))
                })
            }),
        "s_call_b64" => {
            let target = branch_target(b);
            dst(b).map(|d| -> Exec {
                Box::new(move |w, _| {
                    let pc = w.next_address;
                    w.write_s64(d, pc);
                    Ok(Flow::Jump(target))
                })
            })
        }
        "s_getreg_b32" => get_register(b),
        "s_setreg_b32" | "s_setreg_imm32_b32" => set_register(b),
        "s_round_mode" => imm16(b, 0).map(|bits| -> Exec {
            Box::new(move |w, _| {
                let mode = w.mode.bits() & !15 | bits as u32 & 15;
                w.mode.set_bits(mode);
                Ok(Flow::Next)
            })
        }),
        "s_denorm_mode" => imm16(b, 0).map(|bits| -> Exec {
            Box::new(move |w, _| {
                let mode = w.mode.bits() & !0xf0 | (bits as u32 & 15) << 4;
                w.mode.set_bits(mode);
                Ok(Flow::Next)
            })
        }),
        "s_memtime" | "s_memrealtime" => dst(b).map(|d| -> Exec {
            Box::new(move |w, env| {
                w.write_s64(d, env.clock);
                Ok(Flow::Next)
            })
        }),
        "s_sendmsg_rtn_b32" | "s_sendmsg_rtn_b64" => {
            let double = name.ends_with("64");
            dst(b).map(|d| -> Exec {
                Box::new(move |w, env| {
                    w.write_s(d, env.clock as u32);
                    if double {
                        w.write_s(d + 1, (env.clock >> 32) as u32);
                    }
                    Ok(Flow::Next)
                })
            })
        }
        "s_movrels_b32" => dst(b).and_then(|d| Ok((d, b.mask_out(1)?))).map(|(d, first)| -> Exec {
            Box::new(move |w, _| {
                let index = first as usize + w.s[M0 as usize] as usize;
                let value =
                    *w.s.get(index)
                        .ok_or_else(|| Trap::not_modelled(format!("s{index} is not there")))?;
                w.write_s(d, value);
                Ok(Flow::Next)
            })
        }),
        "s_movreld_b32" => dst(b).and_then(|d| Ok((d, src(b, 1)?))).map(|(first, x)| -> Exec {
            Box::new(move |w, _| {
                let index = u32::from(first).wrapping_add(w.s[M0 as usize]);
                if index >= 106 {
                    return Err(Trap::not_modelled(format!("s{index} is not there")));
                }
                let value = get(w, x);
                w.write_s(index as u16, value);
                Ok(Flow::Next)
            })
        }),
        "s_set_gpr_idx_on" => {
            let enable = match b.operand(1).map(|operand| &operand.kind) {
                Ok(Kind::Text(text)) => {
                    u8::from(text.contains("SRC0"))
                        | u8::from(text.contains("SRC1")) << 1
                        | u8::from(text.contains("SRC2")) << 2
                        | u8::from(text.contains("DST")) << 3
                }
                Ok(Kind::Int(bits)) => *bits as u8,
                other => return Some(Err(format!("mode {other:?}"))),
            };
            src(b, 0).map(|x| -> Exec {
                Box::new(move |w, _| {
                    w.gpr_index = Some((enable, get(w, x) & 0xff));
                    Ok(Flow::Next)
                })
            })
        }
        "s_set_gpr_idx_idx" => src(b, 0).map(|x| -> Exec {
            Box::new(move |w, _| {
                let offset = get(w, x) & 0xff;
                if let Some((_, old)) = &mut w.gpr_index {
                    *old = offset;
                }
                Ok(Flow::Next)
            })
        }),
        "s_set_gpr_idx_off" => Ok(Box::new(|w, _| {
            w.gpr_index = None;
            Ok(Flow::Next)
        })),
        _ => return None,
    })
}

/// `s_barrier_signal id`; only the workgroup's own barrier (-1) exists here.
fn signal(b: &Build<'_>) -> Result<Exec, String> {
    match b.operand(0)?.kind {
        Kind::Int(-1) => Ok(Box::new(|w, env| {
            env.arrive(w);
            w.signalled = true;
            Ok(Flow::Next)
        })),
        ref other => Err(format!("named barrier {other:?}")),
    }
}

fn barrier_wait(b: &Build<'_>) -> Result<Exec, String> {
    match b.operand(0)?.kind {
        Kind::Int(-1) | Kind::Bits(0xffff) | Kind::Bits(0xffff_ffff) => Ok(Box::new(|w, _| {
            if !w.signalled {
                return Err(Trap::not_modelled("s_barrier_wait without s_barrier_signal before it"));
            }
            Ok(Flow::Barrier)
        })),
        ref other => Err(format!("named barrier {other:?}")),
    }
}

/// The waits: each names how many operations of a counter may be left.
fn wait(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    let immediate = || -> Result<usize, String> {
        match b.text.operands.last().map(|operand| &operand.kind) {
            Some(Kind::Int(value)) => Ok(*value as usize & 0xffff),
            Some(Kind::Bits(value)) => Ok(*value as usize & 0xffff),
            other => Err(format!("{other:?} is not a count")),
        }
    };
    let mut waits: Vec<(Counter, usize)> = Vec::new();
    let counter = match name {
        "s_waitcnt" => {
            // The disassembler leaves out counters that are at their maximum.
            let mut words = Vec::new();
            for operand in &b.text.operands {
                match &operand.kind {
                    Kind::Text(text) => words.push(text.clone()),
                    // A bare number: all counters' fields; only "everything" is decoded from it.
                    Kind::Int(0) | Kind::Bits(0) => {
                        words.extend(["vmcnt(0)".to_string(), "lgkmcnt(0)".to_string()]);
                    }
                    other => return Some(Err(format!("wait {other:?}"))),
                }
            }
            words.extend(
                b.text
                    .modifiers
                    .iter()
                    .map(|(key, _)| key.clone())
                    .filter(|key| key != "&"),
            );
            for word in words {
                let count = word
                    .split_once('(')
                    .and_then(|(name, rest)| Some((name.to_string(), number(rest.strip_suffix(')')?)? as usize)));
                match count {
                    Some((name, left)) if name == "vmcnt" => waits.push((Counter::Vector, left)),
                    Some((name, left)) if name == "lgkmcnt" => waits.push((Counter::Local, left)),
                    Some((name, _)) if name == "expcnt" => {}
                    _ => return Some(Err(format!("wait {word}"))),
                }
            }
            None
        }
        "s_waitcnt_vscnt" | "s_wait_storecnt" => Some(Counter::Store),
        "s_waitcnt_vmcnt" | "s_wait_loadcnt" => Some(Counter::Vector),
        "s_waitcnt_lgkmcnt" | "s_wait_dscnt" => Some(Counter::Local),
        "s_wait_kmcnt" => Some(Counter::Scalar),
        "s_waitcnt_expcnt" | "s_wait_expcnt" | "s_wait_samplecnt" | "s_wait_bvhcnt" | "s_wait_xcnt" => {
            return Some(nothing());
        }
        "s_wait_idle" => {
            for counter in [Counter::Vector, Counter::Store, Counter::Local, Counter::Scalar] {
                waits.push((counter, 0));
            }
            None
        }
        "s_wait_loadcnt_dscnt" | "s_wait_storecnt_dscnt" => {
            let bits = match immediate() {
                Ok(bits) => bits,
                Err(error) => return Some(Err(error)),
            };
            let first = if name.contains("load") {
                Counter::Vector
            } else {
                Counter::Store
            };
            waits.push((first, bits >> 8 & 0x3f));
            waits.push((Counter::Local, bits & 0x3f));
            None
        }
        _ => return None,
    };
    if let Some(counter) = counter {
        match immediate() {
            Ok(left) => waits.push((counter, left)),
            Err(error) => return Some(Err(error)),
        }
    }
    Some(Ok(Box::new(move |w, _| {
        for (counter, left) in &waits {
            w.board.wait(*counter, *left);
        }
        Ok(Flow::Next)
    })))
}

/// `hwreg(NAME, offset, size)`: the name and the bit field.
fn hardware_register(b: &Build<'_>, index: usize) -> Result<(String, u32, u32), String> {
    let Kind::Text(text) = &b.operand(index)?.kind else {
        return Err("not a hardware register".into());
    };
    let inner = text
        .strip_prefix("hwreg(")
        .and_then(|rest| rest.strip_suffix(')'))
        .ok_or_else(|| format!("hardware register {text}"))?;
    let mut parts = inner.split(',').map(str::trim);
    let name = parts.next().unwrap_or("").to_string();
    let mut field = |absent: u32| parts.next().and_then(number).map_or(absent, |value| value as u32);
    let (offset, size) = (field(0), field(32));
    Ok((name, offset, size))
}

fn get_register(b: &Build<'_>) -> Result<Exec, String> {
    let d = dst(b)?;
    let (name, offset, size) = hardware_register(b, 1)?;
    let read: fn(&Wave, u64) -> u32 = match name.as_str() {
        "HW_REG_MODE" | "HW_REG_WAVE_MODE" => |w, _| w.mode.bits(),
        // Bits 31..16 are the LDS aperture's upper half word, 15..0 the scratch aperture's.
        "HW_REG_SH_MEM_BASES" => |_, _| {
            ((crate::decode::text::SHARED_BASE >> 48) as u32 * 0x1_0000)
                | (crate::decode::text::PRIVATE_BASE >> 48) as u32
        },
        "HW_REG_SHADER_CYCLES" | "HW_REG_SHADER_CYCLES_LO" => |_, clock| clock as u32,
        "HW_REG_SHADER_CYCLES_HI" => |_, clock| (clock >> 32) as u32,
        "HW_REG_XCC_ID" | "HW_REG_HW_ID" | "HW_REG_HW_ID1" | "HW_REG_HW_ID2" | "HW_REG_TRAPSTS" | "HW_REG_IB_STS"
        | "HW_REG_IB_STS2" | "HW_REG_LDS_ALLOC" | "HW_REG_GPR_ALLOC" => |_, _| 0,
        "HW_REG_STATUS" | "HW_REG_WAVE_STATUS" => |w, _| u32::from(w.scc),
        "HW_REG_FLAT_SCR_LO" => |w, _| w.s[FLAT_SCRATCH as usize],
        "HW_REG_FLAT_SCR_HI" => |w, _| w.s[FLAT_SCRATCH as usize + 1],
        other => return Err(format!("hardware register {other} is not modelled")),
    };
    Ok(Box::new(move |w, env| {
        let bits = u64::from(read(w, env.clock)) >> offset & ((1u64 << size) - 1);
        w.write_s(d, bits as u32);
        Ok(Flow::Next)
    }))
}

fn set_register(b: &Build<'_>) -> Result<Exec, String> {
    let (name, offset, size) = hardware_register(b, 0)?;
    let value = src(b, 1)?;
    let mask = (((1u64 << size) - 1) << offset) as u32;
    match name.as_str() {
        "HW_REG_MODE" | "HW_REG_WAVE_MODE" => Ok(Box::new(move |w, _| {
            let bits = w.mode.bits() & !mask | get(w, value) << offset & mask;
            w.mode.set_bits(bits);
            Ok(Flow::Next)
        })),
        "HW_REG_FLAT_SCR_LO" | "HW_REG_FLAT_SCR_HI" => {
            let index = FLAT_SCRATCH + u16::from(name.ends_with("HI"));
            Ok(Box::new(move |w, _| {
                let bits = get(w, value);
                w.write_s(index, bits);
                Ok(Flow::Next)
            }))
        }
        other => Err(format!("writing hardware register {other} is not modelled")),
    }
}
