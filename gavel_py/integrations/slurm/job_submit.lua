-- job_submit.lua: written by `gavel slurm install`, gavel-py.
-- Jobs of the managed partition that ask for GPUs start on hold; only administrators release them (the driver is one).
-- It notes when they came, since a requeue overwrites their submit time, whether they want to be on one node, since a start
-- overwrites that, and what their users hold. The driver's account may have no right to note anything itself.

local PARTITION = "@PARTITION@"
local IS_DEFAULT = @IS_DEFAULT@
local ADMINISTRATORS = { @ADMINISTRATORS@ }
local HOLD = "gavel%-hold"

local function is_managed(partition)
   if partition == nil or partition == "" then
      return IS_DEFAULT
   end
   return partition == PARTITION
end

local function wants_gpus(job)
   for _, field in ipairs({ "tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket", "gres" }) do
      local text = job[field]
      if type(text) == "string" and string.find(text, "gpu", 1, true) then
         return true
      end
   end
   return false
end

-- Nothing for jobs that ask for certain nodes, which are not managed.
local function place_of(job)
   if job.req_nodes ~= nil and job.req_nodes ~= "" then
      return ""
   end
   local by_node = string.find(job.tres_per_node or job.gres or "", "gpu", 1, true) ~= nil
   local least = job.min_nodes
   if job.max_nodes == 1 or (by_node and (least == nil or least == slurm.NO_VAL or least <= 1)) then
      return ";place=node"
   end
   return ";place=any"
end

local function is_administrator(uid)
   return ADMINISTRATORS[uid] == true
end

function slurm_job_submit(job, partitions, uid)
   if not is_managed(job.partition) or not wants_gpus(job) then
      return slurm.SUCCESS
   end
   -- Of a heterogeneous job, which Slurm schedules by itself, only the first part has a script.
   local part = job.het_job_offset
   local is_heterogeneous = part ~= nil and part ~= slurm.NO_VAL
   if is_heterogeneous and part > 0 then
      return slurm.SUCCESS
   end
   if job.script == nil or job.script == "" then
      slurm.log_user("partition " .. PARTITION .. " accepts only batch jobs (sbatch), since jobs are stopped and restarted")
      return slurm.ERROR
   end
   if is_heterogeneous then
      return slurm.SUCCESS
   end
   if job.requeue == 0 then
      slurm.log_user("partition " .. PARTITION .. " accepts only jobs that may be requeued; omit --no-requeue")
      return slurm.ERROR
   end
   if job.priority == 0 then
      job.comment = (job.comment or "") .. " gavel-hold"
   end
   job.priority = 0
   job.requeue = 1
   job.admin_comment = "gavel:submit=" .. os.time() .. ";plugin" .. place_of(job)
   return slurm.SUCCESS
end

-- A user's hold of a job that is held already changes nothing in Slurm, so it is noted in the comment; a release takes the note
-- away, and leaves the driver's hold.
function slurm_job_modify(job, record, partitions, uid)
   if is_administrator(uid) or not is_managed(record.partition) or job.priority == slurm.NO_VAL then
      return slurm.SUCCESS
   end
   local comment = string.gsub(record.comment or "", "%s*" .. HOLD, "")
   if job.priority == 0 then
      job.comment = comment .. " gavel-hold"
      return slurm.SUCCESS
   end
   if string.find(record.admin_comment or "", "gavel:", 1, true) == nil then
      return slurm.SUCCESS
   end
   if comment == (record.comment or "") then
      slurm.log_user("gavel starts the jobs of partition " .. PARTITION .. " when it is their turn")
      return slurm.ERROR
   end
   -- An empty comment would leave the old one.
   job.comment = comment == "" and "gavel:" or comment
   job.priority = slurm.NO_VAL
   return slurm.SUCCESS
end

return slurm.SUCCESS
