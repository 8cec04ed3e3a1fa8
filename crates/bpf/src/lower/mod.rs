//! Lowering: SSA to bytecode.
//!
//! expand match tables → legalize → split critical edges → select instructions (`isel`) → allocate registers
//! (`regalloc2`) → emit blocks (`emit`, `frame`) → repair them (`merge_blocks`, `spills`, `peephole`) → order
//! them (`layout`) → assemble. How constants reach block parameters is a matter of taste of the register
//! allocator, so a function is lowered by each [`LoweringStrategy`] and the shortest result is taken.

mod assemble;
mod back_edges;
mod code;
mod copy_propagation;
mod emit;
mod frame;
mod hoist;
mod isel;
mod layout;
mod legal;
mod live;
mod merge_blocks;
mod mir;
mod peephole;
mod reassign_registers;
mod register_sets;
mod spills;
mod stack_interference;
mod undefined;

use millstream_ir::verify::verify_definitions;
use millstream_ir::{Cfg, Core, Func, Function, Module};
use millstream_isa::generation::KernelRange;
use millstream_isa::{Insn, decode_all};
use millstream_match_tables::with_tables_expanded;
use millstream_threads::{WorkerThread, both, with_worker_thread};
use regalloc2::{Algorithm, RegallocOptions};

use crate::cost::OptimizationGoal;
use crate::jit::jited_bytes;
use crate::lift::RelocTarget;
use live::LiveAcrossCalls;

/// Why a function cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// The operation has no form in BPF.
    #[error("function `{function}`: `{op}` has no form in BPF")]
    NotBpf {
        /// The operation's mnemonic.
        op: &'static str,
        /// The function.
        function: String,
    },
    /// Stack objects and spills exceed 512 bytes.
    #[error("function `{function}` needs {bytes} bytes of stack; the kernel gives 512")]
    Stack {
        /// The function.
        function: String,
        /// Bytes needed.
        bytes: u32,
    },
    /// The register allocator gave up.
    #[error("function `{function}`: register allocation failed: {why}")]
    Registers {
        /// The function.
        function: String,
        /// In the allocator's words.
        why: String,
    },
    /// The IR is invalid: a value is used where it is not defined, or worse.
    #[error("function `{function}`: the IR is invalid: {why}")]
    Invalid {
        /// The function.
        function: String,
        /// First error found.
        why: String,
    },
    /// The code would read a register or a spill slot that is not written on every path.
    #[error("function `{function}`: {what} would be read without having been written")]
    Undefined {
        /// The function.
        function: String,
        /// The register or slot.
        what: String,
    },
    /// A jump is too far, even for the long form.
    #[error("function `{function}`: a jump is too far")]
    TooFar {
        /// The function.
        function: String,
    },
}

/// A choice that changes the code but not its meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoweringStrategy {
    /// Constants stay where they were made, over calls and blocks, instead of being made anew near their
    /// uses.
    pub far_constants: bool,
    /// Constants are stored as immediates even where the same one is stored several times.
    pub immediate_stores: bool,
    /// Constants are never stored as immediates: the machine's form of that is long.
    pub register_stores: bool,
    /// A stack address that several calls take is kept in a register, instead of being made for each.
    pub kept_addresses: bool,
    /// `r0` is as good as other registers, and not only for results.
    pub free_r0: bool,
    /// Values that live across calls are bound to argument registers without a copy.
    pub bound_arguments: bool,
}

/// In which order blocks are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BlockOrder {
    /// The shortest that is found.
    #[default]
    Best,
    /// As they came. Where the verifier goes on to remove code that it finds dead, this may end up shorter.
    Given,
    /// Each followed by the one it falls or jumps to. The verifier looks at what falls through first, so that
    /// the order decides how many states it sees.
    Chained,
}

impl BlockOrder {
    /// All orders.
    pub const ALL: [BlockOrder; 3] = [BlockOrder::Best, BlockOrder::Given, BlockOrder::Chained];
}

/// The choices, each to be tried with and without.
const CHOICES: [fn(&mut LoweringStrategy) -> &mut bool; 6] = [
    |s| &mut s.far_constants,
    |s| &mut s.immediate_stores,
    |s| &mut s.register_stores,
    |s| &mut s.kept_addresses,
    |s| &mut s.free_r0,
    |s| &mut s.bound_arguments,
];

/// A function of this many instructions takes milliseconds to lower.
const LARGE: usize = 500;

impl LoweringStrategy {
    /// The same with one choice made the other way.
    fn with(mut self, choice: usize) -> LoweringStrategy {
        *CHOICES[choice](&mut self) ^= true;
        self
    }
}

/// The bytecode of one function with its symbols. Positions are slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoweredFunction {
    /// Instructions.
    pub insns: Vec<Insn>,
    /// Targets of relocated instructions.
    pub syms: Vec<(u32, RelocTarget)>,
    /// CO-RE relocations.
    pub cores: Vec<(u32, Core)>,
    /// Starts of the source line records, ascending.
    pub lines: Vec<(u32, u32)>,
    /// Bytes of stack used.
    pub stack: u32,
}

impl LoweredFunction {
    /// Length in slots.
    pub fn slots(&self) -> usize {
        self.insns.iter().map(|i| i.slots()).sum()
    }

    /// Length in both measures.
    pub fn length(&self) -> CodeLength {
        let symbols: Vec<u32> = self.syms.iter().map(|s| s.0).collect();
        CodeLength { slots: self.slots(), jited: jited_bytes(&self.insns, &symbols) }
    }

    /// Returns true if the instruction at a slot is a call.
    pub fn is_call(&self, slot: u32) -> bool {
        let mut at = 0;
        self.insns.iter().find_map(|i| {
            let here = at == slot as usize;
            at += i.slots();
            here.then_some(matches!(i, Insn::Call(_)))
        }) == Some(true)
    }
}

/// Length of code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeLength {
    /// Slots.
    pub slots: usize,
    /// Bytes of machine code, as [`jited_bytes`] estimates them.
    pub jited: u32,
}

/// Goal of the code, and the lengths that it should not exceed: those of the original.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeLimits {
    /// Slots and bytes that the original has.
    pub length: CodeLength,
    /// Objective that the lengths are weighed by.
    pub goal: OptimizationGoal,
    /// The kernels that must accept the code.
    pub kernels: KernelRange,
}

impl CodeLimits {
    /// No limits, for every supported kernel.
    pub const fn none(goal: OptimizationGoal) -> CodeLimits {
        CodeLimits {
            length: CodeLength { slots: usize::MAX, jited: u32::MAX },
            goal,
            kernels: KernelRange::ALL,
        }
    }

    /// The same limits for these kernels only.
    pub const fn on(self, kernels: KernelRange) -> CodeLimits {
        CodeLimits { kernels, ..self }
    }

    /// The lengths of a function as it is; no limits if it cannot be decoded.
    pub fn of(func: &millstream_object::ObjectFunction, goal: OptimizationGoal) -> CodeLimits {
        match decode_all(&func.insns) {
            Ok(decoded) => {
                let decoded: Vec<Insn> = decoded.into_iter().map(|(_, i)| i).collect();
                let symbols: Vec<u32> = func.relocs.iter().map(|r| r.insn).collect();
                let length = CodeLength { slots: func.insns.len(), jited: jited_bytes(&decoded, &symbols) };
                CodeLimits { length, ..CodeLimits::none(goal) }
            }
            Err(_) => CodeLimits::none(goal),
        }
    }

    /// Returns true if code of some length keeps to these limits.
    pub fn are_met(&self, length: CodeLength) -> bool {
        length.slots <= self.length.slots && length.jited <= self.length.jited
    }

    /// Cost of code of some length: bytes of machine code, and slots in as many bytes as one is worth for the
    /// goal, and more for each beyond these limits.
    pub fn cost(&self, length: CodeLength) -> usize {
        let (slots, jited) = (length.slots, length.jited);
        let more_slots = slots.saturating_sub(self.length.slots);
        let more_jited = jited.saturating_sub(self.length.jited) as usize;
        jited as usize + self.slot() as usize * slots + more_slots * 40 + more_jited * 8
    }

    /// A slot, in bytes of machine code. Programs are compared by both.
    fn slot(&self) -> u32 {
        match self.goal {
            OptimizationGoal::Size => 64,
            OptimizationGoal::Balanced | OptimizationGoal::Verify => 8,
            OptimizationGoal::Latency => 4,
        }
    }
}

/// Lowers a function, trying the choices of [`LoweringStrategy`] one by one and keeping what helps.
///
/// # Errors
/// [`LowerError`], if no strategy succeeds.
pub fn lower(func: &Function) -> Result<LoweredFunction, LowerError> {
    lower_within(func, CodeLimits::none(OptimizationGoal::Balanced), BlockOrder::Best)
}

/// Lowers a function of a module as [`lower`] does, its matches of the module's tables expanded to
/// comparisons.
///
/// # Errors
/// [`LowerError`], if no strategy succeeds.
pub fn lower_func(module: &Module, func: Func) -> Result<LoweredFunction, LowerError> {
    let func = &module.funcs[func];
    match with_tables_expanded(module, func) {
        Some(expanded) => lower(&expanded),
        None => lower(func),
    }
}

/// Lowers a function as [`lower`] does, and tries to keep within limits.
///
/// # Errors
/// [`LowerError`], if no strategy succeeds.
pub fn lower_within(
    func: &Function,
    limits: CodeLimits,
    order: BlockOrder,
) -> Result<LoweredFunction, LowerError> {
    let prepared = LegalizedFunction::new(func)?;
    let best = prepared.searched(limits, order);
    match best.assembled {
        Some(assembled) => assembled,
        None => best.code?.assembled(&prepared.func, limits, order),
    }
}

/// Lowers a function as [`lower_within`] does, with its blocks in each order.
pub fn lower_in_each_order(func: &Function, limits: CodeLimits) -> Vec<LoweredFunction> {
    let Ok(prepared) = LegalizedFunction::new(func) else { return Vec::new() };
    let Ok(best) = prepared.searched(limits, BlockOrder::Best).code else { return Vec::new() };
    let code = BlockOrder::ALL.map(|order| best.clone().assembled(&prepared.func, limits, order));
    code.into_iter().flatten().collect()
}

/// A thread that lowers by one strategy while another is at work, for functions that take long enough.
type StrategyWorker = WorkerThread<LoweringStrategy, Result<LoweredBlocks, LowerError>>;

/// Lowers a function in all ways that there are: by each choice of [`LoweringStrategy`] on top of those that
/// were good, with its blocks in each order. `good` says of code whether it is the best so far.
pub fn lower_each(func: &Function, limits: CodeLimits, good: &mut dyn FnMut(&LoweredFunction) -> bool) {
    let Ok(prepared) = LegalizedFunction::new(func) else { return };
    let mut better = |strategy: LoweringStrategy| {
        let Ok(shaped) = prepared.shaped(strategy, limits) else { return false };
        let code = BlockOrder::ALL.map(|order| shaped.clone().assembled(func, limits, order));
        code.iter().flatten().filter(|code| good(code)).count() > 0
    };
    let mut strategy = LoweringStrategy::default();
    better(strategy);
    for choice in 0..CHOICES.len() {
        if better(strategy.with(choice)) {
            strategy = strategy.with(choice);
        }
    }
}

/// The best that was found.
struct BestLowering {
    code: Result<LoweredBlocks, LowerError>,
    strategy: LoweringStrategy,
    /// Strategies that were no better, and the current one.
    tried: Vec<LoweringStrategy>,
    /// Its blocks in order, if there was a thread to spare.
    assembled: Option<Result<LoweredFunction, LowerError>>,
}

impl BestLowering {
    /// Tries the choices from `at` on one by one, each on top of those that have helped.
    fn choose(
        &mut self,
        prepared: &LegalizedFunction,
        helper: Option<&StrategyWorker>,
        mut at: usize,
        limits: CodeLimits,
        order: BlockOrder,
    ) {
        while at < CHOICES.len() {
            if self.is_idle(at) {
                at += 1;
                continue;
            }
            let ahead_at = (at + 1..CHOICES.len()).find(|&n| !self.is_idle(n));
            let next = ahead_at.map(|n| self.strategy.with(n));
            let first = self.strategy.with(at);
            let last = (ahead_at.unwrap_or(at) + 1..CHOICES.len()).all(|n| self.is_idle(n));
            self.tried.push(first);
            at += 1;
            let (code, ahead) = match &self.code {
                // Mostly the last ones do not help.
                Ok(code) if last && helper.is_some() => {
                    let assemble = || code.clone().assembled(&prepared.func, limits, order);
                    let (assembled, tried) = both(assemble, || prepared.tried(helper, first, next, limits));
                    self.assembled = Some(assembled);
                    tried
                }
                _ => prepared.tried(helper, first, next, limits),
            };
            // An attempt made ahead counts only if it is the one that would have come next.
            let helped = self.take(first, code, limits);
            if let (false, Some(ahead), Some(next), Some(ahead_at)) = (helped, ahead, next, ahead_at) {
                self.tried.push(next);
                self.take(next, ahead, limits);
                at = ahead_at + 1;
            }
        }
    }

    /// Reports whether a choice made the other way cannot help: it selects the same instructions, or has been
    /// tried.
    fn is_idle(&self, choice: usize) -> bool {
        let same = self.code.as_ref().is_ok_and(|code| code.idle[choice]);
        same || self.tried.contains(&self.strategy.with(choice))
    }

    /// Takes other code if it is better; says whether it was.
    fn take(
        &mut self,
        strategy: LoweringStrategy,
        code: Result<LoweredBlocks, LowerError>,
        limits: CodeLimits,
    ) -> bool {
        let better = match (&code, &self.code) {
            (Ok(code), Ok(best)) => limits.cost(code.length) < limits.cost(best.length),
            (Ok(_), Err(_)) => true,
            (Err(_), _) => false,
        };
        if better {
            (self.code, self.strategy, self.assembled) = (code, strategy, None);
        }
        better
    }
}

/// Lowers a function in one given way.
///
/// # Errors
/// [`LowerError`].
pub fn lower_with(func: &Function, strategy: LoweringStrategy) -> Result<LoweredFunction, LowerError> {
    let limits = CodeLimits::none(OptimizationGoal::Balanced);
    LegalizedFunction::new(func)?.shaped(strategy, limits)?.assembled(func, limits, BlockOrder::Best)
}

/// A function fit for instruction selection.
struct LegalizedFunction {
    func: Function,
    cfg: Cfg,
    crossing: LiveAcrossCalls,
}

impl LegalizedFunction {
    /// Refuses IR in which a value is used where it is not defined: the register allocator would take it for
    /// live on entry.
    fn new(func: &Function) -> Result<LegalizedFunction, LowerError> {
        if let Some(error) = verify_definitions(func).first() {
            return Err(LowerError::Invalid { function: func.name.clone(), why: error.to_string() });
        }
        let mut func = func.clone();
        legal::legalize(&mut func);
        legal::split_critical_edges(&mut func);
        let cfg = Cfg::new(&func);
        let crossing = LiveAcrossCalls::new(&func, &cfg);
        Ok(LegalizedFunction { func, cfg, crossing })
    }

    /// Tries the choices one by one and keeps what helps, for blocks in some order.
    fn searched(&self, limits: CodeLimits, order: BlockOrder) -> BestLowering {
        if self.func.insts.len() < LARGE {
            return self.searched_with(None, limits, order);
        }
        with_worker_thread(
            |strategy| self.shaped(strategy, limits),
            |helper| self.searched_with(helper, limits, order),
        )
    }

    fn searched_with(
        &self,
        helper: Option<&StrategyWorker>,
        limits: CodeLimits,
        order: BlockOrder,
    ) -> BestLowering {
        let strategy = LoweringStrategy::default();
        let (code, ahead) = self.tried(helper, strategy, Some(strategy.with(0)), limits);
        let mut best = BestLowering { code, strategy, tried: vec![strategy], assembled: None };
        let mut at = 0;
        if let Some(ahead) = ahead {
            best.tried.push(strategy.with(0));
            best.take(strategy.with(0), ahead, limits);
            at = 1;
        }
        best.choose(self, helper, at, limits, order);
        // One choice may pay only after another: where the limits are not kept, all are tried once more.
        if !best.code.as_ref().is_ok_and(|b| limits.are_met(b.length)) {
            best.choose(self, helper, 0, limits, order);
        }
        best
    }

    /// Lowers by one strategy and, where there is a helper, by the one that is likely to be tried next.
    fn tried(
        &self,
        helper: Option<&StrategyWorker>,
        strategy: LoweringStrategy,
        next: Option<LoweringStrategy>,
        limits: CodeLimits,
    ) -> (Result<LoweredBlocks, LowerError>, Option<Result<LoweredBlocks, LowerError>>) {
        let here = || self.shaped(strategy, limits);
        match (helper, next) {
            (Some(helper), Some(next)) => {
                let (ahead, code) = helper.both(next, here);
                (code, ahead)
            }
            _ => (here(), None),
        }
    }

    /// All but the order of the blocks.
    fn shaped(&self, strategy: LoweringStrategy, limits: CodeLimits) -> Result<LoweredBlocks, LowerError> {
        let func = &self.func;
        let mir = isel::select(func, &self.cfg, &self.crossing, strategy, limits.kernels)?;
        let options = RegallocOptions {
            verbose_log: false,
            validate_ssa: cfg!(debug_assertions),
            algorithm: Algorithm::Ion,
        };
        let out = regalloc2::run(&mir, &mir::machine_env(strategy.free_r0), &options)
            .map_err(|e| LowerError::Registers { function: func.name.clone(), why: format!("{e:?}") })?;
        let (mut blocks, frame) = emit::emit(func, &self.cfg, &mir, &out)?;
        let stack = frame.size;
        spills::eliminate_redundant_spills(&mut blocks, &frame.spills);
        undefined::materialize_undefined(func, &mut blocks);
        merge_blocks::thread_empty_blocks(&mut blocks);
        merge_blocks::merge_equal(&mut blocks);
        peephole::run_peepholes(&mut blocks, limits);
        merge_blocks::thread_empty_blocks(&mut blocks);
        merge_blocks::merge_equal(&mut blocks);
        undefined::clear_results(func, &mut blocks);
        let length = layout::quick_length(&blocks);
        let mut bearing = mir.bearing;
        let idle = CHOICES.map(|choice| !*choice(&mut bearing));
        Ok(LoweredBlocks { blocks, stack, spills: frame.spills, length, idle })
    }
}

/// A function's blocks of bytecode.
#[derive(Clone)]
struct LoweredBlocks {
    blocks: Vec<code::EmittedBlock>,
    stack: u32,
    /// Places of spilled values.
    spills: Vec<i32>,
    /// In an order that is quickly found.
    length: CodeLength,
    /// Choices that would have made no difference.
    idle: [bool; CHOICES.len()],
}

impl LoweredBlocks {
    fn assembled(
        self,
        func: &Function,
        limits: CodeLimits,
        order: BlockOrder,
    ) -> Result<LoweredFunction, LowerError> {
        let mut blocks = self.blocks;
        let mut order = match order {
            BlockOrder::Best => layout::best_order(&blocks, limits),
            BlockOrder::Given => layout::source_order(&blocks),
            BlockOrder::Chained => layout::chained(&blocks),
        };
        let cost = |blocks: &[code::EmittedBlock], order: &[usize]| {
            limits.cost(layout::CodeSizeEstimator::new(blocks).length(order))
        };
        let (mut other, mut other_order) = (blocks.clone(), order.clone());
        layout::duplicate_exit_blocks(&mut other, &mut other_order);
        if cost(&other, &other_order) <= cost(&blocks, &order) {
            (blocks, order) = (other, other_order);
        }
        let length = |blocks: &[code::EmittedBlock]| layout::CodeSizeEstimator::new(blocks).length(&order);
        if length(&blocks).jited > limits.length.jited {
            copy_propagation::share_zeros(&mut blocks, &|blocks| limits.cost(length(blocks)));
        }
        undefined::check(func, &blocks, &self.spills)?;
        let closed = back_edges::blocks_closed_by_jumps(&blocks, &order, limits.kernels);
        let code = assemble::assemble(func, &blocks, &order, &closed)?;
        let is_far = |i: &Insn| matches!(i, Insn::Jump { long: true, .. });
        let is_longer = code.insns.iter().any(is_far) || closed.contains(&true);
        debug_assert!(is_longer || code.length() == length(&blocks));
        Ok(LoweredFunction { stack: self.stack, ..code })
    }
}

#[cfg(test)]
mod tests {
    use millstream_object::Object;
    use millstream_programs::{BALANCER, FIREWALL, NAT, ROUTER, SWITCH};

    use super::*;
    use crate::module::lift_object;

    #[test]
    fn code_in_each_order_is_that_of_each_order_by_itself() {
        let limits = CodeLimits::none(OptimizationGoal::Balanced);
        for program in [ROUTER, SWITCH, FIREWALL] {
            let object = Object::parse(program.name, program.object).unwrap();
            let module = lift_object(&object).unwrap().module;
            for func in module.funcs.values() {
                let alone = BlockOrder::ALL.map(|order| lower_within(func, limits, order).unwrap());
                assert_eq!(lower_in_each_order(func, limits), alone, "{} {}", program.name, func.name);
            }
        }
    }

    #[test]
    fn choices_that_are_said_to_make_no_difference_make_none() {
        let limits = CodeLimits::none(OptimizationGoal::Balanced);
        let (mut idle, mut bearing) = ([0; CHOICES.len()], [0; CHOICES.len()]);
        for program in [ROUTER, SWITCH, FIREWALL, NAT, BALANCER] {
            let object = Object::parse(program.name, program.object).unwrap();
            let module = lift_object(&object).unwrap().module;
            for func in module.funcs.values() {
                let prepared = LegalizedFunction::new(func).unwrap();
                for base in [
                    LoweringStrategy::default(),
                    LoweringStrategy::default().with(1),
                    LoweringStrategy::default().with(2),
                ] {
                    let code = prepared.shaped(base, limits).unwrap();
                    for (choice, is_idle) in code.idle.into_iter().enumerate() {
                        let same = || {
                            let other = prepared.shaped(base.with(choice), limits).unwrap();
                            let [a, b] =
                                [code.clone(), other].map(|c| c.assembled(func, limits, BlockOrder::Given));
                            assert_eq!(a, b, "{} {}: {choice}", program.name, func.name);
                        };
                        if is_idle {
                            idle[choice] += 1;
                            same();
                        } else {
                            bearing[choice] += 1;
                        }
                    }
                }
            }
        }
        // Stores are told both ways, and no address is worth keeping here; of the others nothing is claimed.
        assert!((1..4).all(|choice| idle[choice] > 0), "{idle:?}");
        assert!((1..3).all(|choice| bearing[choice] > 0), "{bearing:?}");
        assert_eq!([idle[0], idle[4], idle[5]], [0; 3]);
    }
}
